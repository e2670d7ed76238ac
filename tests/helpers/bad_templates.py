"""A chat template that does harm when a message tells it to."""

HARMFUL = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% if 'HANG' in m.content %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "{% if 'EAT' in m.content %}{{ m.content * 10**9 }}{% endif %}"
    "{% if 'ESCAPE' in m.content %}{{ ''.__class__.__mro__ }}{% endif %}"
    "{% if 'SPY' in m.content %}{{ cycler.__init__.__globals__.os.environ }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HARM = {
    "HANG": "longer than its limit",
    "EAT": "failed on this conversation",
    "ESCAPE": "failed on this conversation",
    "SPY": "failed on this conversation",
}
"""What a message says, and what the error of its request then says."""
