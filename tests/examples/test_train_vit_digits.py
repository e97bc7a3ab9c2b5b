"""The vision transformer: its patches, the images that it reads, and the accuracy that it reports."""

import numpy as np
import pytest
from example_scripts import load, recorded

import minigrad

VIT = "train_vit_digits.py"
pytestmark = pytest.mark.usefixtures("same_generator")


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
