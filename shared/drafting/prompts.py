"""
Prompts whose answers a draft learns from: templates, filled in with topics and with documentation.

They are of the kinds that people ask for, and none of them is among those that speculation is
measured with (`shared/measure/prompts`), nor has a text of theirs.
"""

import random
from collections.abc import Iterator, Sequence
from pydoc_data import topics as documentation

from slipstream.shared.drafting import topics
from slipstream.shared.measure.prompt_sets import SETS, read_set

_SUBJECT = (
    "What is interesting about {}?",
    "Tell me something about {}.",
    "Explain {} to a child.",
    "Write a short paragraph about {}.",
    "Give me five facts about {}.",
    "What is the history of {}?",
    "Why do people care about {}?",
    "What are common misunderstandings about {}?",
    "List the most important words to know when reading about {}.",
    "How have {} changed the world?",
    "Write a short poem about {}.",
    "What are the advantages and disadvantages of {}?",
    "What questions should I ask an expert on {}?",
    "Compare {} and {}.",
    "What do {} and {} have in common?",
    "How are {} and {} connected?",
    "I have to write an essay about {}. Give me an outline.",
    "Describe {} in three sentences.",
    "How do {} work?",
    "Is it true that {} are dangerous?",
)
_ACTIVITY = (
    "How do I {}?",
    "I want to {}. Where should I begin?",
    "Give me some tips on how to {}.",
    "What do I need to {}?",
    "I tried to {} and failed. What might I have done wrong?",
    "Explain step by step how to {}.",
    "My friend wants to {}. What would you advise?",
    "How long does it take to {}, and what does it cost?",
    "What are the most common mistakes when people {}?",
)
_STORY = (
    "Tell me a story about {}, who {}.",
    "Write a short story in which {} {}.",
    "Write the beginning of a novel: {} {}.",
    "Write a dialogue in which {}, who {}, talks to a friend.",
    "Write a fairy tale about {}.",
    "Describe {} in a few sentences.",
)
_PLACE = (
    "What should I see in {}?",
    "Plan three days in {} for me.",
    "What is the best time of the year to visit {}?",
    "Tell me about the food and the people of {}.",
    "How do I get around in {}?",
    "Write a postcard from {}.",
    "What is {} known for?",
)
_PERSON = (
    "Who was {}?",
    "What is {} famous for?",
    "Write a short biography of {}.",
    "What can we learn from {}?",
    "Imagine a conversation with {}.",
)
_TASK = (
    "Write a Python function that {}.",
    "Write a program in Python that {}, with comments.",
    "Write a function in JavaScript that {}.",
    "Show me a Python example that {} and explain it.",
    "How would you write a function that {}? Give tests too.",
    "Write a Java method that {}.",
)
_TEXT = (
    "Summarize this text.\n\n{}",
    "What does this text say?\n\n{}",
    "Give the key points of the following.\n\n{}",
    "Explain this to a beginner.\n\n{}",
    "Rewrite this in simpler words.\n\n{}",
    "Correct the mistakes in this text, if there are any.\n\n{}",
    "Make a list of questions that this text answers.\n\n{}",
)
# How often each kind comes: mostly what people chat about.
_WEIGHTS = {
    "subject": 34,
    "activity": 20,
    "story": 16,
    "place": 7,
    "person": 6,
    "task": 9,
    "text": 8,
}

# Words in a row that a prompt may not share with one that speculation is measured with.
NUM_SHARED_WORDS = 8
_TEXT_CHARACTERS = (300, 1500)


def training_prompts(seed: int) -> Iterator[str]:
    """Yield prompts without end; a seed gives the same ones, each of them once."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    measured = measured_runs()
    texts = _texts()
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    given: set[str] = set()
    while True:
        kind = generator.choices(kinds, weights)[0]
        prompt = _fill(kind, generator, texts)
        if prompt in given or not measured.isdisjoint(runs_of(prompt)):
            continue
        given.add(prompt)
        yield prompt


def measured_runs() -> frozenset[tuple[str, ...]]:
    """Return the runs of words of every prompt that speculation is measured with."""
    texts = (prompt.text for name in SETS for prompt in read_set(name).prompts)
    return frozenset(run for text in texts for run in runs_of(text))


def runs_of(text: str) -> set[tuple[str, ...]]:
    """Return its runs of so many words; of a shorter text all of it."""
    words = text.lower().split()
    num_runs = max(len(words) - NUM_SHARED_WORDS + 1, 1)
    return {tuple(words[first : first + NUM_SHARED_WORDS]) for first in range(num_runs)}


def _fill(kind: str, generator: random.Random, texts: Sequence[str]) -> str:
    if kind == "text":
        return generator.choice(_TEXT).format(generator.choice(texts))
    templates, *lists = _KINDS[kind]
    template = generator.choice(templates)
    if kind == "subject":
        return template.format(*generator.sample(lists[0], 2))
    return template.format(*(generator.choice(each) for each in lists))


def _texts() -> list[str]:
    """Return paragraphs of Python's documentation, put together to some length."""
    low, high = _TEXT_CHARACTERS
    found = []
    for _, text in sorted(documentation.topics.items()):
        piece = ""
        for paragraph in text.split("\n\n"):
            joined = " ".join(paragraph.split())
            if low <= len(piece) and len(piece) + len(joined) > high:
                found.append(piece)
                piece = ""
            piece = f"{piece}\n\n{joined}".strip()[:high]
        if len(piece) >= low:
            found.append(piece)
    return found


# Of each kind the templates, and what they are filled in with.
_KINDS = {
    "subject": (_SUBJECT, topics.split(topics.SUBJECTS)),
    "activity": (_ACTIVITY, topics.split(topics.ACTIVITIES)),
    "story": (_STORY, topics.split(topics.CHARACTERS), topics.split(topics.EVENTS)),
    "place": (_PLACE, topics.split(topics.PLACES)),
    "person": (_PERSON, topics.split(topics.PEOPLE)),
    "task": (_TASK, topics.split(topics.TASKS)),
}
