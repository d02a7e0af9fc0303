"""A conversation as one question: system message, the user's text with marks for images, and the reference answer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mmrl.media.pictures import StoredPicture
from mmrl.prompts.row import IMAGE_MARK, Row
from mmrl.prompts.row_pictures import BadRow
from mmrl.prompts.row_values import parsed

ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}


class Question(NamedTuple):
    """The question of a conversation."""

    text: str
    system: str | None = None
    answer: Any = None  # what the assistant says at its end, if it does
    images: tuple[Any, ...] = ()  # those inside the messages, as they are written


def question(value: Any, name: str) -> Question:
    """Returns the question of a text, or of messages: an optional system message, the user's, an optional answer.

    Raises BadRow for several turns, an unknown role and content that is neither text nor image.
    """
    value = parsed(value) if isinstance(value, str) and value.lstrip().startswith("[{") else value
    if isinstance(value, str):
        return Question(value)
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise BadRow(f"{name!r} must be a text or a list of messages, got {value!r:.80}")
    messages = [_role_and_content(message, name) for message in value]
    roles = [role for role, _ in messages]
    start = 1 if roles[0] == "system" else 0
    if roles[start:] not in (["user"], ["user", "assistant"]):
        raise BadRow(
            f"{name!r} must hold one message of the user (a system message before it, an answer after it), "
            f"got {', '.join(roles)}"
        )
    text, images = _joined(messages[start][1], name)
    system = _joined(messages[0][1], name)[0] if start else None
    answer = messages[-1][1] if roles[-1] == "assistant" else None
    if isinstance(answer, list) and answer and all(isinstance(part, dict) and "type" in part for part in answer):
        answer = _joined(answer, name)[0]
    return Question(text, system, answer, images)


def are_messages(value: Any) -> bool:
    """Returns whether a value is a list of messages, judged by their keys."""
    named = {"role", "from"}
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and named & set(one) for one in value)


def last_answer(value: Any, name: str) -> Any:
    """Returns the text of the assistant's last message; any other value, such as a text or a list of boxes, as it is.

    Raises BadRow for messages that end with another role's, and for a last message that holds an image.
    """
    messages = parsed(value) if isinstance(value, str) and value.lstrip().startswith("[{") else value
    if not are_messages(messages):
        return value
    role, content = _role_and_content(messages[-1], name)
    if role != "assistant":
        raise BadRow(f"the messages of {name!r} must end with one of the assistant, got one of the {role}")
    text, _ = _joined(content, name)
    if not isinstance(content, str) and IMAGE_MARK in text:
        raise BadRow(f"the answer in {name!r} holds an image, and answers are texts")
    return text


def _role_and_content(message: dict[str, Any], name: str) -> tuple[str, Any]:
    sender = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    if not isinstance(sender, str) or sender not in ROLES or content is None:
        raise BadRow(
            f"a message of {name!r} needs a role ({', '.join(sorted(set(ROLES)))}) and content, got {message!r:.80}"
        )
    return ROLES[sender], content


def _joined(content: Any, name: str) -> tuple[str, tuple[Any, ...]]:
    """Returns the text of a message with a mark in the place of each image, and the images that the message holds."""
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, Sequence):
        raise BadRow(f"the content of a message of {name!r} must be a text or a list of parts, got {content!r:.80}")
    texts, images = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str) or kind == "text":
            texts.append(part if isinstance(part, str) else str(part.get("text", "")))
        elif kind in ("image", "image_url"):
            texts.append(IMAGE_MARK)
            held = next((part[key] for key in ("image", "path", "url", "base64", "image_url") if key in part), None)
            images += [held.get("url", held) if kind == "image_url" and isinstance(held, dict) else held]
        else:
            raise BadRow(f"a part of a message of {name!r} must be a text or an image, got {part!r:.80}")
    return "".join(texts), tuple(image for image in images if image is not None)


def media_of(row: Row, conversation: Question, names: Sequence[str] = ("images", "image")) -> tuple[StoredPicture, ...]:
    """Returns the images of a row: of its image field, else those inside its messages."""
    beside = row.images(names)
    if beside and conversation.images:
        raise BadRow(f"it has images in its messages and in {' or '.join(map(repr, names))}; one of the two is allowed")
    return beside or tuple(
        row.folder.picture(one, f"image {n} of its messages") for n, one in enumerate(conversation.images, 1)
    )
