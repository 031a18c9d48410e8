"""Checks that a model's chat templates are Jinja.

They are parsed, never compiled or rendered: a template is a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from ..support.text import printable
from .model import Model
from .records import Finding
from .vocabulary import at_key

if TYPE_CHECKING:
    from jinja2 import TemplateSyntaxError
    from jinja2.parser import Parser

_KEY = "tokenizer.chat_template"
#: The most characters of all templates of a file: known ones have up to 20,000. Parsing this many takes some seconds.
MOST_CHARACTERS = 1 << 17


def check_chat_templates(model: Model) -> Iterator[Finding]:
    """Yield findings for templates that do not parse."""
    left = MOST_CHARACTERS
    for key in model.metadata:
        value = model.metadata[key] if key == _KEY or key.startswith(f"{_KEY}.") else None
        if not isinstance(value, (str, memoryview)):
            continue
        left -= len(value)
        if left < 0:
            expected = f"at most {MOST_CHARACTERS:,} characters of templates, as every known model"
            yield at_key("chat-template", model, key, expected, f"{MOST_CHARACTERS - left:,}, which were not parsed,")
            return
        text = value if isinstance(value, str) else str(value, "utf-8", "surrogateescape")
        if (why := _fault(text)) is not None:
            yield at_key("chat-template", model, key, "a template in Jinja", why)


def _fault(text: str) -> str | None:
    """Return why a text is no template; None if it is one.

    Functions such as `raise_exception` and `strftime_now` are names, which a parser does not resolve.
    """
    parse, template_syntax_error = _parser()
    try:
        parse(text)
    except template_syntax_error as error:
        return f"{printable(error.message or '', 120)} in line {error.lineno}"
    except RecursionError:
        return "a text that is nested too deeply"
    except ValueError as error:  # e.g. a number of more than 4,300 digits
        return printable(str(error), 120)
    return None


@cache
def _parser() -> tuple[Callable[[str], object], type[TemplateSyntaxError]]:
    """Return the Jinja parser as configured by Hugging Face's transformers and llama.cpp, and its error class.

    It is imported here, since an audit of a file without a template does not need it.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """The tag `{% generation %} … {% endgeneration %}`, which marks the output of the model itself."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    environment = Environment(extensions=[Generation, "jinja2.ext.loopcontrols"], autoescape=False)
    return environment.parse, TemplateSyntaxError
