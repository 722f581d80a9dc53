"""Short conversations for calibration: what chat models see most begins with their template."""

# A question and its answer. Written for this purpose; none of it is used to judge the result.
CHATS = (
    (
        "Which is the largest planet of the solar system?",
        (
            "The largest planet of the solar system is Jupiter. It is more than "
            "eleven times as wide as the Earth and has at least 90 moons."
        ),
    ),
    (
        "Name the capital of Japan and say one sentence about it.",
        (
            "The capital of Japan is Tokyo. It is one of the most populous cities "
            "in the world, known for its temples, its railways and its food."
        ),
    ),
    (
        "Write a short poem about autumn.",
        (
            "The leaves let go, the lanterns glow,\nThe geese write letters in the "
            "sky.\nA kettle sings, the garden brings\nIts final apples, and the "
            "wind goes by."
        ),
    ),
    (
        "How do I sort a list of words by length in Python?",
        (
            "Use `sorted` with a key:\n\n```python\nwords = ['pear', 'fig', "
            "'banana']\nprint(sorted(words, key=len))  # ['fig', 'pear', "
            "'banana']\n```\n\nTo change the list in place, call "
            "`words.sort(key=len)`."
        ),
    ),
    (
        "What is 15 % of 240?",
        ("To find 15 % of 240, multiply 240 by 0.15: 240 * 0.15 = 36. So 15 % of 240 is 36."),
    ),
    (
        "Give me three tips for better sleep.",
        (
            "Here are three tips for better sleep:\n\n1. Go to bed at the same "
            "time every day.\n2. Keep the bedroom dark, quiet and cool.\n3. Avoid "
            "screens and coffee in the evening."
        ),
    ),
    (
        "Who painted the ceiling of the Sistine Chapel?",
        ("The ceiling of the Sistine Chapel was painted by Michelangelo between 1508 and 1512."),
    ),
    (
        "Translate 'The book is on the table' into French.",
        'The translation is: "Le livre est sur la table."',
    ),
    (
        "Explain to a child why the moon changes its shape.",
        (
            "The moon does not really change its shape. The sun always lights one "
            "half of it, and as the moon travels around the Earth we see more or "
            "less of the bright half. When we see all of it, we call it a full "
            "moon."
        ),
    ),
    (
        "Write an email that asks for a day off.",
        (
            "Subject: Day off on Friday\n\nDear Mr. Brown,\n\nI would like to take "
            "next Friday off for a family matter. All of my open tasks will be "
            "finished by Thursday, and Maria has agreed to answer urgent calls.\n\n"
            "Kind regards,\nPaul"
        ),
    ),
    (
        "What does an operating system do?",
        (
            "An operating system manages the hardware of a computer and lets "
            "programs share it. It decides which program runs when, gives memory "
            "to each, and offers files, networks and devices through a common "
            "interface."
        ),
    ),
    (
        "Summarize the water cycle in two sentences.",
        (
            "The sun warms the sea, water evaporates, rises and forms clouds. It "
            "falls as rain or snow, flows back through rivers and the ground, and "
            "the cycle begins again."
        ),
    ),
    (
        "Is a tomato a fruit or a vegetable?",
        (
            "Botanically, a tomato is a fruit, because it grows from a flower and "
            "contains seeds. In the kitchen it is treated as a vegetable."
        ),
    ),
    (
        "Hello! Can you help me plan a birthday party?",
        (
            "Of course! I'd be happy to help. How many guests do you expect, and "
            "do you want to celebrate at home or somewhere else? Once I know that, "
            "I can suggest food, games and a schedule for the day."
        ),
    ),
    (
        "Correct this sentence: 'She don't has no time.'",
        'The corrected sentence is: "She doesn\'t have any time."',
    ),
    (
        "What were the causes of the French Revolution?",
        (
            "Several causes came together: the state was deep in debt, taxes fell "
            "mostly on the poor, bad harvests made bread expensive, and the ideas "
            "of the Enlightenment questioned the rights of the king and the "
            "nobility."
        ),
    ),
)
