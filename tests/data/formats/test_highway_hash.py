"""Against the numbers of highwayhash's own tests, and the checksums of ArrayRecord's files."""

import numpy as np

from t5x_lite.data.formats.array_records import RIEGELI_KEY, highway_hash

# highwayhash/highwayhash_test.cc: of the bytes 0, 1, 2, ... with this key
KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908, 0x1716151413121110, 0x1F1E1D1C1B1A1918)
EXPECTED = (
    0x907A56DE22C26E53, 0x7EAB43AAC7CDDD78, 0xB8D0569AB0B53D62, 0x5C6BEFAB8A463D80,
    0xF205A46893007EDA, 0x2B8A1668E4A94541, 0xBD4CCC325BEFCA6F, 0x4D02AE1738F59482,
    0xE1205108E55F3171,
)  # fmt: skip


def test_the_authors_numbers():
    texts = [bytes(range(size)) for size in range(len(EXPECTED))]
    assert highway_hash(texts, KEY).tolist() == list(EXPECTED)


def test_many_at_a_time_are_each_by_itself():
    rng = np.random.default_rng(0)
    texts = [rng.bytes(int(size)) for size in rng.permutation(200)]
    alone = [int(highway_hash([text], RIEGELI_KEY)[0]) for text in texts]
    assert highway_hash(texts, RIEGELI_KEY).tolist() == alone
    assert len({*alone}) == 200
    assert highway_hash([], RIEGELI_KEY).tolist() == []
