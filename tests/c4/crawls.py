"""Small crawls with everything in them that deduplication has to decide."""

import pathlib
import random

from tests.c4.wet_files import info_record, members, wet_record

WORDS = "the of and to in is that for it as was with be by on not he his but at are this have"


def sentences(rng: random.Random, count: int) -> list[str]:
    return [
        " ".join(rng.choices(WORDS.split(), k=rng.randint(6, 12))).capitalize() + "."
        for _ in range(count)
    ]


def write_crawl(
    directory: pathlib.Path, *, files: int = 4, pages: int = 30, seed: int = 0
) -> list[pathlib.Path]:
    """WET files whose pages share lines and URLs, some of them damaged."""
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    shared = sentences(rng, 3 * pages)
    paths = []
    for number in range(files):
        records = [info_record()]
        for _ in range(pages):
            lines = sentences(rng, rng.randint(3, 12)) + rng.sample(shared, rng.randint(0, 8))
            lines += ["Buy now", "Read our privacy policy on this page."]
            rng.shuffle(lines)
            for _ in range(3):
                at = rng.randrange(len(lines))
                lines[at : at + 2] = [" ".join(lines[at : at + 2])]
            scheme = rng.choice(["http://", "https://www."])
            url = f"{scheme}site{rng.randrange(9)}.com/{rng.randrange(2 * files * pages // 3)}"
            date = f"2019-04-{rng.randint(1, 28):02d}T10:00:00Z"
            records.append(wet_record(url, "\n".join(lines), date=date))
        path = directory / f"{number}.warc.wet.gz"
        path.write_bytes(members(*records))
        paths.append(path)
    with paths[-1].open("r+b") as file:
        file.truncate(paths[-1].stat().st_size - 30)
    return paths
