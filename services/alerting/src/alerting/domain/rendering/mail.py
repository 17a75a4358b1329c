"""Mail: plain text, and the same as HTML, with everything escaped."""

import re
from dataclasses import dataclass
from html import escape
from itertools import groupby

from alerting.domain.events import Severity
from alerting.domain.messages import Message
from alerting.domain.texts import RUNBOOK

COLOURS = {Severity.INFO: "#1864ab", Severity.WARNING: "#e67700", Severity.CRITICAL: "#c92a2a"}
OVER = "#2b8a3e"
INDENT = "  "
"""How the lines of a table begin, which are shown as they are."""
STYLE = "font-family:sans-serif;font-size:14px;color:#212529;max-width:44em"


@dataclass(frozen=True, slots=True)
class Mail:
    """The parts of a mail. ``thread`` groups the mails about one thing in a reader's list."""

    subject: str
    text: str
    html: str
    thread: str


def render(message: Message, link: str | None) -> Mail:
    """The title, what happened, a job's verdict and the line that shows it, and a link."""
    return Mail(message.subject, _text(message, link), _html(message, link), message.thread_id)


def _text(message: Message, link: str | None) -> str:
    parts = [message.title, message.text]
    if message.job is not None:
        parts.append(f"More: muster job {message.job}" + (f"\n{link}" if link else ""))
    parts.append(message.at.isoformat(timespec="seconds"))
    return "\n\n".join(parts) + "\n"


def _linked(address: re.Match[str]) -> str:
    return f'<a href="{address[0]}">{address[0]}</a>'


def _html(message: Message, link: str | None) -> str:
    colour = OVER if message.is_over else COLOURS[message.severity]
    blocks = [
        [it for it in block.splitlines() if it and it != message.verdict]
        for block in message.text_without_line.split("\n\n")
    ]
    body = [
        f'<h2 style="border-left:6px solid {colour};padding-left:10px">{escape(message.title)}</h2>'
    ]
    if message.verdict:
        body.append(f"<p><strong>{escape(message.verdict)}</strong></p>")
    if message.line:
        box = "background:#f1f3f5;padding:8px;white-space:pre-wrap"
        body.append(f'<pre style="{box}">{escape(message.line)}</pre>')
    parts = (it for block in blocks for it in groupby(block, lambda it: it.startswith(INDENT)))
    for is_table, same in parts:
        if is_table:
            body.append(f"<pre>{escape(chr(10).join(same))}</pre>")
        else:
            body += [f"<p>{RUNBOOK.sub(_linked, escape(it))}</p>" for it in same]
    if link:
        body.append(f'<p><a href="{escape(link, quote=True)}">Open the job</a></p>')
    if message.job is not None:
        body.append(f"<p>More: <code>muster job {escape(message.job)}</code></p>")
    body.append(f'<p style="color:#868e96">{message.at.isoformat(timespec="seconds")}</p>')
    head = f'<meta charset="utf-8"><title>{escape(message.subject)}</title>'
    return (
        f'<!doctype html><html><head>{head}</head><body style="{STYLE}">'
        f"{''.join(body)}</body></html>"
    )
