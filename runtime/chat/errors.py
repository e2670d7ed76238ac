"""Errors of the text side. Each message is a sentence for the user: what is wrong, where, and what to do."""


class ModelFilesError(ValueError):
    """A model's files lack something that serving needs, or say something that cannot be honoured."""


class TemplateError(ValueError):
    """A conversation cannot be rendered.

    `message_index` and `field` say where the fault lies, when it lies in one message: `field` is the path inside
    the message, such as `content[1].type`. Both are None when the template itself refused or failed.
    """

    def __init__(self, text: str, *, message_index: int | None = None, field: str | None = None) -> None:
        where = "" if message_index is None else f"messages[{message_index}]"
        if field is not None:
            where = f"{where}.{field}" if where else field
        super().__init__(f"{where}: {text}" if where else text)
        self.message_index = message_index
        self.field = field
