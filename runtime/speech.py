"""What the text side knows of a model: tokenizer, chat template, defaults. Loads neither torch nor weights."""

import logging
from dataclasses import dataclass

from deeproot.runtime.chat.append_only import find_breaks, summary
from deeproot.runtime.chat.assets import ModelAssets
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.reply_format import ReplyFormat, reply_format
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.template_processes import TemplateProcesses
from deeproot.runtime.engine_messages import EngineInfo
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.sampling_options import SamplingDefaults
from deeproot.runtime.structured.output_grammar import OutputGrammars

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Texts:
    """What the model's files say about text."""

    assets: ModelAssets
    template: ChatTemplate | None
    """None: the model has no chat template."""
    reply_format: ReplyFormat
    processes: TemplateProcesses
    """Where the template runs; for others that have to run it. They end with this process, or when nobody holds them."""


@dataclass(frozen=True, slots=True)
class Speech:
    """Everything that it takes to speak with a loaded engine."""

    assets: ModelAssets
    template: ChatTemplate | None
    defaults: SamplingDefaults
    reply_format: ReplyFormat
    grammars: OutputGrammars
    processes: TemplateProcesses
    """See `Texts`."""

    def require_template(self) -> ChatTemplate:
        """The chat template; TemplateError, which says what to do, if there is none."""
        return self.template or self.assets.chat_template()


def load_texts(options: EngineOptions) -> Texts:
    """Read tokenizer and template. Raises SetupError, in one line."""
    processes = TemplateProcesses(options.chat_template_timeout_s)
    try:
        assets = ModelAssets.load(options.model)
        template = _chat_template(options, assets, processes)
    except (OSError, ValueError) as error:
        raise SetupError(f"cannot load {options.model}: {error}") from None
    try:
        replies = reply_format(template, options.tool_call_parser, options.reasoning_parser)
    except ValueError as error:
        raise SetupError(str(error)) from None
    trained = assets.context_length
    if trained is not None and options.max_model_len is not None and options.max_model_len > trained:
        raise SetupError(
            f"--max-model-len {options.max_model_len} is more than the {trained} tokens that the model can handle"
        )
    if template is not None:
        logger.info("chat template: %s", summary(find_breaks(template)))
        logger.info("replies: %s", replies.summary)
    return Texts(assets, template, replies, processes)


def make_speech(texts: Texts, info: EngineInfo) -> Speech:
    """Join what the files say with what the engine was loaded with."""
    said = texts.assets.generation
    defaults = SamplingDefaults(
        temperature=1.0 if said.temperature is None else said.temperature,
        top_p=said.top_p or 1.0,
        top_k=said.top_k or 0,
        min_p=said.min_p or 0.0,
        repetition_penalty=said.repetition_penalty or 1.0,
        max_new_tokens=said.max_new_tokens,
        end_token_ids=tuple(sorted(texts.assets.end_token_ids)),
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
    )
    tokenizer = texts.assets.tokenizer
    special = {tokenizer.text_of(token_id): token_id for token_id in tokenizer.special_ids}
    grammars = OutputGrammars(special, texts.reply_format)
    return Speech(texts.assets, texts.template, defaults, texts.reply_format, grammars, texts.processes)


def _chat_template(
    options: EngineOptions, assets: ModelAssets, programs: TemplateProcesses
) -> ChatTemplate | None:
    if options.chat_template is not None:
        source = options.chat_template.read_text(encoding="utf-8")
        return assets.chat_template(source, keep_thinking=options.keep_thinking, programs=programs)
    try:
        return assets.chat_template(keep_thinking=options.keep_thinking, programs=programs)
    except TemplateError:
        if assets.chat_templates:
            raise
        return None
