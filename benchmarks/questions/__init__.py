"""All questions, in the order in which they are asked."""

from benchmarks.question import Question
from benchmarks.questions import (
    budget,
    claims,
    costs,
    drain,
    engines,
    enqueue,
    gates,
    growth,
    held_snapshot,
    hops,
    idle,
    latency,
    limiting,
    neighbours,
    postgres_enqueue,
    postgres_latency,
    postgres_neighbours,
    shared,
    throughput,
    waiting,
)

QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        costs.QUESTION,
        throughput.QUESTION,
        enqueue.QUESTION,
        latency.QUESTION,
        hops.QUESTION,
        waiting.DEEP,
        waiting.WIDE,
        idle.QUESTION,
        budget.QUESTION,
        neighbours.QUESTION,
        limiting.DECISIONS,
        limiting.LINE,
        shared.QUESTION,
        gates.QUESTION,
        drain.ON_SQLITE,
        drain.QUESTION,
        engines.QUESTION,
        postgres_enqueue.QUESTION,
        postgres_latency.QUESTION,
        postgres_neighbours.QUESTION,
        claims.QUESTION,
        waiting.POSTGRES_DEEP,
        waiting.POSTGRES_WIDE,
        growth.SQLITE,
        growth.POSTGRES,
        held_snapshot.QUESTION,
    )
}
