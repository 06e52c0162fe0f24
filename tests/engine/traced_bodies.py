"""Functions of process tasks that are traced."""

from __future__ import annotations

from opentelemetry import trace

from headgate.observe.tracing import continued_trace


def current_span() -> str:
    """The id of the span that what is called here would be inside of."""
    with continued_trace():
        return trace.format_span_id(trace.get_current_span().get_span_context().span_id)
