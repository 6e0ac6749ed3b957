"""Makes pictures like photographs from seeds, and the same with stripes.

Shape letters: N pictures, H height, W width.
"""

import numpy as np

SIGMA = 14.0  # grey levels of 255
SIDE_PX = 256


def leaves(seed: int, side_px: int = SIDE_PX) -> np.ndarray:
    """Shaded discs of all sizes over each other, with a little noise, (H, W): the statistics of natural pictures."""
    random = np.random.default_rng(seed)
    picture = np.full((side_px, side_px), 128.0)
    y, x = np.mgrid[:side_px, :side_px]
    for _ in range(400):
        radius = 4 * 15 ** (random.random() ** 1.7)
        (top, left), level, shade = random.uniform(0, side_px, 2), random.uniform(15, 240), random.uniform(-0.5, 0.5, 2)
        inside = (x - left) ** 2 + (y - top) ** 2 < radius**2
        picture[inside] = level + shade[0] * (x[inside] - left) + shade[1] * (y[inside] - top)
    return np.clip(picture + random.normal(0, 1.5, picture.shape), 0, 255)


def stripes(height: int, width: int, *, theta_deg: float, sigma: float = SIGMA, seed: int = 0) -> np.ndarray:
    """White noise across, constant along a direction, counter-clockwise from vertical, (H, W)."""
    y, x = np.mgrid[:height, :width]
    across = x * np.cos(np.radians(theta_deg)) - y * np.sin(np.radians(theta_deg))
    across = (across - across.min()).round(6)
    levels = np.random.default_rng(seed).normal(0, sigma, int(across.max()) + 2)
    return np.interp(across, np.arange(len(levels)), levels)


def with_stripes(pictures: np.ndarray, *, theta_deg: float, sigma: float = SIGMA, seed: int = 0) -> np.ndarray:
    """The same stripes on all frames, (T, H, W) or (T, H, W, C), in their own type."""
    added = stripes(*pictures.shape[1:3], theta_deg=theta_deg, sigma=sigma, seed=seed)
    added = added[..., None] if pictures.ndim == 4 else added
    mixed = np.clip(pictures + added, 0, 255)
    return mixed.round().astype(np.uint8) if pictures.dtype == np.uint8 else mixed


def eight(theta_deg: float) -> tuple[np.ndarray, np.ndarray]:
    """Eight seeded pictures without stripes and with, each (N, H, W): what destripe promises something about."""
    clean = np.stack([leaves(seed) for seed in range(8)])
    striped = [with_stripes(picture[None], theta_deg=theta_deg, seed=1000 + n)[0] for n, picture in enumerate(clean)]
    return clean, np.stack(striped)


def half_scratched(seed: int, level: int, *, still: bool) -> np.ndarray:
    """A film of 8 frames without and with two scratches over half of its height, (2, T, H, W, C)."""
    random = np.random.default_rng(seed)
    wide = leaves(seed, 256)[:192].round().astype(np.uint8)
    grey = np.stack([wide if still else np.roll(wide, 3 * index, axis=1) for index in range(8)])[:, :, :224]
    scratched = grey.astype(int)
    for column in (int(random.integers(20, 100)), int(random.integers(120, 200))):
        top = int(random.integers(0, 96))
        scratched[:, top : top + 96, column : column + int(random.integers(1, 4))] += level
    films = np.stack([grey, np.clip(scratched, 0, 255).astype(np.uint8)])
    return films[..., None].repeat(3, -1)


def psnr_db(picture: np.ndarray, clean: np.ndarray) -> float:
    """Peak signal to noise, of 255."""
    return float(20 * np.log10(255 / np.sqrt(np.mean((np.clip(picture, 0, 255).astype(float) - clean) ** 2))))


def microscope(seed: int, side_px: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """Cells or spots as a camera of 12 bits counts them, without stripes and with columns that differ, (H, W) uint16.

    The standard deviation of the stripes is 0.045 of the clean picture's range, so that 27 dB are left.
    """
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:side_px, :side_px].astype(np.float32)
    photons = 40 + 60 * np.exp(-((x - random.uniform(0, side_px)) ** 2 + (y - side_px / 2) ** 2) / (side_px / 2) ** 2)
    for _ in range((60 if seed % 2 else 500) * side_px**2 // 512**2):
        top, left = random.uniform(0, side_px, 2)
        if seed % 2:  # a cell: a flat ellipse with a brighter rim
            radius, turn, longer = random.uniform(12, 40), random.uniform(0, np.pi), random.uniform(1, 2)
            across = (x - left) * np.cos(turn) + (y - top) * np.sin(turn)
            along = (y - top) * np.cos(turn) - (x - left) * np.sin(turn)
            away = np.hypot(across, along / longer) / radius
            photons += random.uniform(80, 500) * (1 + away**2) / (1 + np.exp(np.minimum(12 * (away - 1), 50)))
        else:
            width, level = random.uniform(1.2, 3), random.uniform(100, 1500)
            photons += level * np.exp(-((x - left) ** 2 + (y - top) ** 2) / (2 * width**2))
    clean = 300 + random.poisson(photons) + random.normal(0, 3, photons.shape)
    striped = clean + random.normal(0, 0.045 * np.ptp(clean), side_px)
    return tuple(np.clip(one, 0, 4095).round().astype(np.uint16) for one in (clean, striped))
