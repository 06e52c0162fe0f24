"""All questions, in the order in which they are asked."""

from benchmarks.question import Question
from benchmarks.questions import budget, enqueue, idle, latency, limiting, neighbours, shared, throughput, waiting

QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        throughput.QUESTION,
        enqueue.QUESTION,
        latency.QUESTION,
        waiting.DEEP,
        waiting.WIDE,
        idle.QUESTION,
        budget.QUESTION,
        neighbours.QUESTION,
        limiting.DECISIONS,
        limiting.LINE,
        shared.QUESTION,
    )
}
