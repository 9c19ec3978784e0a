"""A small crawl that is made up: pages on which every rule has something to do."""

import random
from collections.abc import Sequence
from pathlib import Path

from tests.c4.wet_files import info_record, members, wet_record

BAD_WORDS = "badword\ns&m\nc++ (code)\n"
"""A list with the characters of regular expressions."""
_ODD = (
    "Home | About | Contact",
    "Please enable JavaScript to see this page in full.",
    "By using this site you accept our privacy policy, all of it.",
    "It was first described[edit] in 1902.[12] It was described again later.",
    "This one trails off in the middle of a thought...",
    "Too short.",
    "Everybody knows this line, for it is on many of the pages.",
    "And this one too is on many of the pages of the crawl.",
    "It has apples, pears, plums and nuts, etc.",
)
_PAGE_KILLERS = (
    "function area(width) { return width * width; } is a piece of code.",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
    "This line has a badword in it, which drops the page.",
    "The s&m of this line is an entry of the list, so it goes.",
    "There is a c++ (code) in this line, with all its characters.",
)
_GERMAN = (
    "Der Hund läuft über die Straße und sieht die Katze nicht, die auf dem Dach sitzt.",
    "Am nächsten Morgen regnete es so stark, dass niemand das Haus verlassen wollte.",
    "Die Kinder spielten in der Küche, während die Großmutter einen Kuchen backte.",
    "Später am Abend kamen die Nachbarn vorbei und erzählten von ihrer langen Reise.",
)


def write_crawl(
    directory: Path, lines: Sequence[str], *, pages: int = 120, files: int = 3, seed: int = 0
) -> list[Path]:
    """Writes WET files.

    Args:
      directory: gets crawl-0.warc.wet.gz and so on.
      lines: English sentences or paragraphs.
      pages: in all files.
      files: how many.
      seed: of what is where.
    """
    drawn = random.Random(seed)
    sentences = [
        line for line in lines if line.endswith(".") and "{" not in line and "_" not in line
    ]
    records: list[list[bytes]] = [[info_record()] for _ in range(files)]
    for number in range(pages):
        text = drawn.sample(sentences, drawn.randint(1, 8))
        if number % 3 == 0:
            text += drawn.sample(_ODD, 3)
        if number % 11 == 0:
            text.insert(1, drawn.choice(_PAGE_KILLERS))
        if number % 13 == 0:
            text = list(_GERMAN)
        if number % 5 == 0:  # a run of sentences that several pages have
            text += sentences[:4]
        drawn.shuffle(text)
        name = number - (number % 14 == 1)  # a page in fourteen has the URL of the one before
        url = f"https://www.site{name % 17}.example/{name}"
        if number % 4 == 0:
            url = url.replace("https", "http") + "/?utm_source=feed"
        date = f"2019-04-{number % 28 + 1:02d}T10:00:00Z"
        records[number % files].append(wet_record(url, "\n".join(text), date=date))
    records[0].append(wet_record("http://empty.example/", ""))
    records[0].append(wet_record("http://long.example/", "A long line it is. " * 11_000))
    paths = []
    for number, found in enumerate(records):
        content = members(*found)
        if number == 1:  # a member in the middle is damaged
            at = len(content) // 2
            content = content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]
        path = directory / f"crawl-{number}.warc.wet.gz"
        path.write_bytes(content)
        paths.append(path)
    return paths
