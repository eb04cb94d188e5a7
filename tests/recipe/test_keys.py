"""What an unknown key was probably meant to be."""

import random
import string

from ftkit.recipe.judge import KNOWN
from ftkit.recipe.keys import ELSEWHERE, HOLDERS, edits, nearest
from ftkit.recipe.section.data import DatasetSection
from ftkit.recipe.section.tokens import SpecialTokens


def typo(word, rng):
    """`word` with one letter wrong, missing, added, or swapped with its neighbour."""
    at, letter = rng.randrange(len(word)), rng.choice(string.ascii_lowercase)
    swapped = word[:at] + word[at : at + 2][::-1] + word[at + 2 :]
    return rng.choice(
        [word[:at] + letter + word[at + 1 :], word[:at] + word[at + 1 :], word[:at] + letter + word[at:], swapped]
    )


def typos(known, number, seed):
    rng = random.Random(seed)
    made = []
    while len(made) < number:
        word = rng.choice(sorted(known))
        wrong = typo(word, rng)
        if wrong not in known and len(word) > 3:
            made.append((wrong, word))
    return made


def found(known, number, seed):
    pairs = typos(known, number, seed)
    return sum(nearest(wrong, known) == word for wrong, word in pairs) / number


def test_a_wrong_letter_leads_to_the_right_key():
    for seed in range(5):
        assert found(set(HOLDERS), 100, seed) >= 0.95
        assert found(set(KNOWN), 100, seed) >= 0.95


def test_the_same_inside_data_sets_and_special_tokens():
    assert found(set(DatasetSection.model_fields), 100, 0) >= 0.95
    assert found(set(SpecialTokens.model_fields), 100, 0) >= 0.95


def test_words_like_nothing_get_no_suggestion():
    assert nearest("quux", HOLDERS) is None


def test_edits_count_swapped_neighbours_as_one():
    assert edits("abcd", "abdc") == 1
    assert edits("abc", "abc") == 0
    assert edits("kitten", "sitting") == 3


def test_the_names_of_other_tools_lead_to_ours():
    assert nearest("lora_rank", KNOWN) == "lora_r"
    assert nearest("lr", KNOWN) == "learning_rate"
    assert nearest("per_device_train_batch_size", KNOWN) == "micro_batch_size"
    for theirs, ours in ELSEWHERE.items():
        assert theirs not in KNOWN
        assert ours in HOLDERS
        assert nearest(theirs, KNOWN) == ours
    assert nearest("lr", SpecialTokens.model_fields) is None
