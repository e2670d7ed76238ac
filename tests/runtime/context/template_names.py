"""The chat templates that all kinds of tests run over."""

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "26 Jul 2024"}
"""What templates know by name; a fixed date, since llama3's shape shows one."""
TEMPLATES = (
    *("qwen2.5-instruct", "mistral-instruct", "phi-3", "deepseek-r1-distill"),
    *("qwen3", "llama3", "gemma3", "smollm2"),
)
"""Real ones, then shapes of our own."""
WITH_TOOLS = ("qwen2.5-instruct", "deepseek-r1-distill", "qwen3")
"""Those that show tool calls whatever their number and ids."""
TRIMMING = ("mistral-instruct", "phi-3", "llama3", "gemma3")
"""Those that strip contents."""
RUNNING_ON = ("mistral-instruct", "deepseek-r1-distill", "gemma3")
"""Those with messages between which no control token stands; gemma3 puts the policy into the first user's turn."""
