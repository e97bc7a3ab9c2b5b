"""The examples of spirals, sums and digits: what they draw, and the share that they print."""

import importlib.util
import re
import sys

import numpy as np
import pytest
from example_scripts import finish, load, recorded
from refusals import raises

import minigrad

SPIRALS = "mlp_classifier.py"


def by_hand(model, x: np.ndarray) -> np.ndarray:
    """The classes, computed in float64 from the weights."""
    w = {name: p.detach().numpy().astype(np.float64) for name, p in model.named_parameters()}
    for layer in (0, 2):
        x = np.tanh(x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"])
    return (x @ w["4.weight"].T + w["4.bias"]).argmax(1)


def test_the_accuracy_is_that_of_new_points(monkeypatch, tmp_path):
    spirals = load(SPIRALS, monkeypatch)
    seen = recorded(monkeypatch, spirals, "train")
    shown = finish(SPIRALS, "--steps", 150, "--points", 300, "--seed", 3, cwd=tmp_path).stdout
    model, known = seen[:2]
    rng = np.random.default_rng(3)
    first, _ = spirals.two_spirals(300, 0.02, rng)
    x, y = spirals.two_spirals(300, 0.02, rng)
    assert np.array_equal(first, known) and not np.isin(x, known).any()
    right = int((by_hand(model, x.astype(np.float64)) == y).sum())
    assert shown.splitlines()[-1].startswith(f"{right} of 300 new points right: {right / 3:.1f} % ")
    assert shown.startswith("4,482 parameters; about 0.3 GB of memory, ")
    assert 180 < right < 300  # it has learned something and not everything, so the number means something


@pytest.mark.long
def test_it_learns_the_spirals(tmp_path):
    shown = finish(SPIRALS, "--steps", 700, "--width", 0, cwd=tmp_path).stdout
    (right,) = re.findall(r"^(\d+) of 400 new points right", shown, re.MULTILINE)
    assert int(right) >= 380


def test_the_drawing_is_what_the_network_says(monkeypatch):
    spirals = load(SPIRALS, monkeypatch)

    class Right(minigrad.nn.Module):
        """Class 1 above the falling diagonal."""

        def forward(self, x: minigrad.Tensor) -> minigrad.Tensor:
            return minigrad.stack([x[:, 0] * 0, x.sum(1)], dim=1)

    x = np.array([[-1, 0.9], [1, 1], [-1, -1], [-1, -1.05]], np.float32)
    drawn = spirals.drawing(Right(), x, np.array([0, 1, 1, 0]), 8).splitlines()
    assert drawn[:-1] == ["o::::::x", "...:::::", ".....:::", "!......:"]  # a mistake is not hidden by what is right


def test_the_points_are_two_spirals(monkeypatch):
    x, y = load(SPIRALS, monkeypatch).two_spirals(1000, 0.0, np.random.default_rng(0))
    radius, angle = np.hypot(*x.T), np.arctan2(x[:, 1], x[:, 0])
    turned = angle - 3.5 * np.pi * radius - np.pi * y
    np.testing.assert_allclose(np.cos(turned), 1, atol=1e-4)
    assert y.sum() == 500 and radius.max() <= 1


def test_the_picture_is_drawn_or_said_to_be_missing(monkeypatch, tmp_path):
    arguments = ("--steps", 1, "--points", 4, "--width", 0, "--png", "new/plane.png")
    shown = finish(SPIRALS, *arguments, cwd=tmp_path).stdout
    if importlib.util.find_spec("matplotlib") is not None:
        assert "picture: new/plane.png" in shown
        assert (tmp_path / "new/plane.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    assert "no picture: matplotlib is not installed" in finish(SPIRALS, *arguments, cwd=tmp_path).stdout


def test_what_does_not_fit_is_refused(monkeypatch):
    script = load(SPIRALS, monkeypatch, "--hidden", 10**6)
    told = r"1,000,006,000,002 parameters .* need about 16,0.*GB of memory.*; --hidden 16384 fits$"
    monkeypatch.setattr(sys.modules["estimate"], "free_memory", lambda device: 2**33)
    raises(script.UsageError, told, script.main)
    both = load(SPIRALS, monkeypatch, "--hidden", 10**6, "--points", 10**9)
    raises(script.UsageError, r"; --hidden \d+ --points \d+ fit$", both.main)


ADDITION = "train_addition.py"
pytestmark = pytest.mark.usefixtures("same_generator")


@pytest.mark.parametrize("reverse", [True, False])
def test_the_sums_are_all_and_right(reverse, monkeypatch):
    addition = load(ADDITION, monkeypatch)
    lines = [addition.text(row) for row in addition.all_sums(reverse)]
    assert len(set(lines)) == len(lines) == 10_000
    for line in lines:
        question, total = line.split("=")
        assert len(line) == 9 and len(total) == 3
        assert sum(map(int, question.split("+"))) == int(total[::-1] if reverse else total)


def written(model, tokens: np.ndarray) -> np.ndarray:
    """Nine tokens for six, from the whole text each time: no cache of keys and values."""
    for _ in range(3):
        with minigrad.no_grad():
            following = model(minigrad.from_numpy(tokens))[:, -1].numpy().argmax(1)
        tokens = np.concatenate([tokens, following[:, None]], 1)
    return tokens


@pytest.mark.long
def test_the_share_is_what_the_model_writes_on_sums_it_never_saw(monkeypatch, capsys):
    addition = load(ADDITION, monkeypatch, "--steps", 300, "--batch-size", 128, "--held-out", 400, "--seed", 5, "--ask")
    seen = recorded(monkeypatch, addition, "train")
    asked = iter(["57 + 68", "nonsense", "3+4=", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(asked))
    assert addition.main() == 0
    model, known = seen[:2]
    learned = {tuple(row) for row in known}
    held_out = np.array([row for row in addition.all_sums() if tuple(row) not in learned])
    assert len(learned) == 9600 and len(held_out) == 400
    right = int((written(model, held_out[:, :6]) == held_out).all(1).sum())
    shown = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"some of them: (\d+ \+ \d+ = \d+(, |$)){5}", shown[-5])
    for line, start in zip(shown[-3:], ("57 + 68 = ", "two numbers", "3 + 4 = ")):
        assert line.startswith(start)
    assert shown[-4].startswith(f"{right} of 400 held-out sums right: {right / 4:.2f} % ")
    assert 10 < right < 400  # some are wrong, so the number means something
    wrong = [line for line in shown if line.startswith("wrong: ")]
    assert len(wrong) == min(400 - right, 10)
    for line in wrong:  # as people write them
        form = r"wrong: (\d+) \+ (\d+) = (\d+); \1 \+ \2 = (\d+) is right"
        a, b, given, correct = map(int, re.fullmatch(form, line).groups())
        assert a + b == correct != given


def test_only_the_answer_is_learned(monkeypatch):
    addition = load(ADDITION, monkeypatch, "--steps", 2, "--batch-size", 7, "--held-out", 10)
    targets: list[np.ndarray] = []
    cross_entropy = addition.F.cross_entropy

    def noted(logits, target, **options):
        targets.append(target.numpy().reshape(7, 8))
        return cross_entropy(logits, target, **options)

    monkeypatch.setattr(addition.F, "cross_entropy", noted)
    assert addition.main() == 0
    for target in targets:
        assert (target[:, :5] == -100).all() and ((target[:, 5:] >= 0) & (target[:, 5:] < 10)).all()
    assert len(targets) == 2 and (targets[0] != targets[1]).any()


@pytest.mark.parametrize("script", [ADDITION, "train_vit_digits.py"])
@pytest.mark.parametrize(
    ("flag", "value", "error"),
    [
        ("--steps", 0, "--steps"),
        ("--seed", -1, "--seed"),
        ("--batch-size", 2**20, "GB of memory.*--batch-size 1?.... f"),
    ],
)
def test_values_out_of_range_are_refused(script, flag, value, error, monkeypatch):
    module = load(script, monkeypatch, flag, value)
    monkeypatch.setattr(sys.modules["estimate"], "free_memory", lambda device: 2**30)
    raises(module.UsageError, error, module.main)
    raises(module.UsageError, "--held-out", load(script, monkeypatch, "--held-out", -1).main)


VIT = "train_vit_digits.py"


def test_patches_are_squares_of_the_image(monkeypatch):
    vit = load(VIT, monkeypatch)
    images = np.arange(2 * 16 * 16, dtype=np.float32).reshape(2, 16, 16)
    cut = vit.patches(minigrad.from_numpy(images)).numpy()
    assert cut.shape == (2, 16, 16)
    for n, row, column in np.ndindex(2, 4, 4):
        square = images[n, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        assert np.array_equal(cut[n, 4 * row + column], square.ravel())


def test_every_patch_matters_and_so_does_its_place(monkeypatch):
    vit = load(VIT, monkeypatch)
    minigrad.manual_seed(1)
    model = vit.VisionTransformer()
    images = minigrad.randn(1, 16, 16, requires_grad=True)
    logits = model(images)
    gradient = vit.patches(logits.square().sum().backward()[images]).numpy()
    assert (np.abs(gradient).max(-1) > 0).all()
    turned = minigrad.cat([images[:, 8:], images[:, :8]], dim=1)  # the same patches elsewhere
    with minigrad.no_grad():
        assert np.abs((model(turned) - logits).numpy()).max() > 1e-4
        model.positions.zero_()  # without positions and without a mask, the order of the patches is nothing
        np.testing.assert_allclose(model(turned).numpy(), model(images).numpy(), atol=1e-5)


def test_images_differ_from_each_other_and_repeat_with_the_seed(monkeypatch):
    load(VIT, monkeypatch)
    import digit_images

    images, digits = digit_images.draw_digits(200, 0.1, np.random.default_rng(4))
    assert images.shape == (200, 16, 16) and images.dtype == np.float32 and digits.dtype == np.int64
    assert set(digits) == set(range(10))
    assert len({image.tobytes() for image in images}) == 200
    again, _ = digit_images.draw_digits(200, 0.1, np.random.default_rng(4))
    assert np.array_equal(images, again)
    clean, _ = digit_images.draw_digits(50, 0.0, np.random.default_rng(4))
    assert clean.min() == 0 and clean.max() == 1
    ink = clean.reshape(50, -1).mean(1)
    assert ink.min() > 0.03 and ink.max() < 0.6  # a pen's lines: neither nothing nor all
    for columns in (20, 70, 100, 300):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, digit_images.show(images[:6]).splitlines())) <= max(columns, 2 * 16)


def test_distances_are_those_to_the_lines(monkeypatch):
    load(VIT, monkeypatch)
    import digit_images

    found = digit_images.distances(np.array([[2.0, 3.0]]), np.array([[2.0, 9.0]]))  # x, y: a line downwards
    assert found[5, 2] == 0 and found[5, 6] == 4 and found[12, 2] == 3
    np.testing.assert_allclose(found[0, 6], 5)


@pytest.mark.long
def test_the_accuracy_is_that_of_images_it_never_saw(monkeypatch, capsys):
    vit = load(VIT, monkeypatch, "--steps", 250, "--images", 1000, "--held-out", 200, "--batch-size", 32, "--seed", 2)
    seen = recorded(monkeypatch, vit, "train")
    assert vit.main() == 0
    model, known = seen[0], seen[1].dataset.tensors[0]
    rng = np.random.default_rng(2)
    first, _ = vit.draw_digits(1000, 0.15, rng)
    images, digits = vit.draw_digits(200, 0.15, rng)
    assert np.array_equal(first, known) and not {i.tobytes() for i in known} & {i.tobytes() for i in images}
    with minigrad.no_grad():
        read = [int(model(minigrad.from_numpy(image[None])).numpy().argmax()) for image in images]
    right = int((np.array(read) == digits).sum())
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].startswith(f"{right} of 200 held-out digits right: {right / 2:.2f} % ")
    assert 60 < right < 200  # far from chance, and some are wrong: the number means something
    table = [[int(n.replace(".", "0")) for n in line.split()[2:]] for line in shown if line.startswith("digit ")]
    expected = np.zeros((10, 10), int)
    for digit, answer in zip(digits, read):
        expected[digit, answer] += 1
    assert np.array_equal(table, expected)


def test_two_steps_are_a_run(monkeypatch, capsys):
    sizes = ("--steps", 2, "--images", 8, "--held-out", 4, "--batch-size", 2)
    assert load(VIT, monkeypatch, *sizes).main() == 0
    assert "of 4 held-out digits right" in capsys.readouterr().out
