"""Noise by seed, stream and row."""

from __future__ import annotations

import numpy as np
import pytest

from rlctl_agents.acting.random_streams import AT_ONCE, Noise, environment_seeds, philox4x32, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known answers that come with Random123, the authors' library
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter: str, key: str, words: str) -> None:
    count = [np.array([int(word, 16)], np.uint64) for word in counter.split()]
    first, second = (int(word, 16) for word in key.split())
    assert " ".join(f"{int(word[0]):08x}" for word in philox4x32(count, (first, second))) == words


def test_noise_lies_strictly_between_0_and_1_and_is_uniform() -> None:
    values = uniforms(3, np.arange(100)[:, None], np.arange(1000)[None, :], 6)
    assert values.shape == (100, 1000, 6)
    assert values.dtype == np.float32
    assert values.min() > 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 0.002  # 0.289 / sqrt(600000) = 0.0004
    assert np.abs(np.corrcoef(values.reshape(-1, 6).T) - np.eye(6)).max() < 0.02


def test_streams_and_rows_beyond_32_bits_have_noise_of_their_own() -> None:
    stream, row = np.array([5, 5 + 2**32, 5, 5]), np.array([7, 7, 7 + 2**32, 8])
    values = uniforms(0, stream, row, 1)
    assert len(np.unique(values)) == 4
    assert not np.array_equal(values, uniforms(2**33, stream, row, 1))


def test_a_slot_gets_the_noise_of_its_rows_whoever_acts_beside_it() -> None:
    streams = np.array([3_000_000, 3_000_001, 3_000_002])
    together, alone = Noise(9, streams, 5, rows=4), Noise(9, streams[1:2], 5, rows=7)
    ragged = Noise(9, streams, 5, rows=3)
    count = AT_ONCE // 5 + 10  # more than any of them makes at once
    everyone = np.stack([together.take(np.arange(3)).copy() for _ in range(count)])
    np.testing.assert_array_equal(everyone[:, 1], np.stack([alone.take(np.arange(1))[0].copy() for _ in range(count)]))
    rows = np.zeros(3, int)
    for who in [[0, 1, 2], [0, 1, 2], *([[0], [1, 2], [1], [0, 1, 2], [2], [0, 2], [0, 1]] * 200)]:
        slot = np.array(who)
        np.testing.assert_array_equal(ragged.take(slot), everyone[rows[slot], slot])
        rows[slot] += 1
    np.testing.assert_array_equal(everyone[:, 2], uniforms(9, streams[2], np.arange(count), 5))


def test_a_policy_without_chance_takes_no_noise() -> None:
    assert Noise(0, np.arange(4), 0, rows=5).take(np.array([1, 3])).shape == (2, 0)


def test_the_seed_of_an_environment_depends_on_its_stream_alone() -> None:
    seeds = environment_seeds(7, np.arange(1000))
    assert environment_seeds(7, np.arange(500, 510)) == seeds[500:510]
    assert len(set(seeds)) == 1000
    assert min(seeds) >= 0
    assert max(seeds) < 2**31
    assert environment_seeds(8, np.arange(1)) != seeds[:1]
