"""Rehearsals of ImageNet and its variants: folders of photographs, and CCC's tars.

The photographs are embedded images of 28 x 28 pixels, enlarged. Names, formats and sizes are those
of the published sets. Domains that need a scene's depth (ImageNet-3DCC) get a plain corruption
instead.
"""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from ctta_bench.datasets.ccc import SEEDS, SPEEDS, stream_name
from ctta_bench.datasets.io.files import atomic, digest_of, writing
from ctta_bench.datasets.io.imagenet import FOLDER, synsets
from ctta_bench.datasets.making.corruptions import U8, corrupt
from ctta_bench.datasets.making.manifest import new_manifest, read_manifest, write_manifest
from ctta_bench.errors import DataError

# Synsets for the ten classes of the embedded images, the closest in meaning: jersey, jean,
# sweatshirt, hoopskirt, trench coat, sandal, lab coat, running shoe, backpack, cowboy boot.
SYNSETS = (
    "n03595614",
    "n03594734",
    "n04370456",
    "n03534580",
    "n04479046",
    "n04133789",
    "n03630383",
    "n04120489",
    "n02769748",
    "n03124043",
)
# The same for the 200 classes of ImageNet-R and of -A, which share 86 with few garments: bow
# tie, saxophone, mitten, parachute, wine bottle, sandal, candle, jeep, barn, pelican.
SHARED = (
    "n02883205",
    "n04141076",
    "n03775071",
    "n03888257",
    "n04591713",
    "n04133789",
    "n02948072",
    "n03594945",
    "n02793495",
    "n02051845",
)
# The plain corruptions used in place of those of ImageNet-3DCC.
STAND_INS = {
    "defocus_blur": "near_focus",
    "gaussian_blur": "far_focus",
    "impulse_noise": "bit_error",
    "contrast": "color_quant",
    "brightness": "flash",
    "fog": "fog_3d",
    "jpeg_compression": "h265_abr",
    "pixelate": "h265_crf",
    "gaussian_noise": "iso_noise",
    "shot_noise": "low_light",
    "motion_blur": "xy_motion_blur",
    "zoom_blur": "z_motion_blur",
}
# For sets of one domain: folder, synsets, suffix, and whether images are grey.
VARIANTS = {
    "imagenet_r": ("imagenet-r", SHARED, "jpg", False),
    "imagenet_a": ("imagenet-a", SHARED, "jpg", False),
    "imagenet_sketch": ("ImageNet-Sketch/sketch", SYNSETS, "JPEG", True),
    "imagenet_v2": ("imagenet-v2/imagenetv2-matched-frequency-format-val", SYNSETS, "jpeg", False),
}
# For sets of listed domains: folder, folder of the lists, domains, and for each of the ten embedded
# classes the folder and the label of a class.
LISTED: dict[str, tuple[str, str, tuple[str, ...], tuple[tuple[str, int], ...]]] = {
    "domainnet126": (
        "DomainNet-126",
        "domainnet126_lists",
        ("clipart", "painting", "real", "sketch"),
        (
            ("bird", 11), ("bus", 16), ("butterfly", 17), ("dog", 41), ("fish", 51),
            ("flower", 53), ("frog", 56), ("guitar", 60), ("horse", 64), ("lion", 69),
        ),
    ),
    "imagenet_d109": (
        "imagenet-d",
        "imagenet_d109_lists",
        ("clipart", "infograph", "painting", "real", "sketch"),
        (
            ("aircraft_carrier", 0), ("ambulance", 1), ("ant", 2), ("backpack", 3), ("banana", 4),
            ("barn", 5), ("broccoli", 16), ("broom", 17), ("bucket", 18), ("candle", 20),
        ),
    ),
}  # fmt: skip
Images = tuple[U8, np.ndarray]  # uint8 [n, 28, 28] and labels int64 [n]


def put(file: Path, content: bytes) -> None:
    """Write a file unless it exists. Raises DataError if it exists with other content."""
    if file.exists():
        if file.read_bytes() != content:
            raise DataError(
                f"{file}: exists with other content, and nothing is overwritten; choose another "
                "--root or move it away."
            )
        return
    with atomic(file) as temporary:
        temporary.write_bytes(content)


def mark_as_rehearsal(folder: Path) -> None:
    """Mark a folder as a rehearsal's, before the first image is written to it.

    Raises DataError for a folder with other files, so that published images are never mixed with
    rehearsal images.
    """
    if (read_manifest(folder) or {}).get("rehearsal"):
        return
    if folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
        raise DataError(
            f"{folder}: holds files that are not a rehearsal's, and is left as it is; choose "
            "another --root or move it away."
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder, new_manifest({"rehearsal": True}))


def record_files(folder: Path, places: list[str]) -> None:
    """Write a manifest, by which `data verify` recognises rehearsal images."""
    manifest = new_manifest({"rehearsal": True})
    manifest["units"] = {place: list(digest_of(folder / place)) for place in places}
    write_manifest(folder, manifest)


def photograph(image: U8, *, grey: bool = False) -> bytes:
    """A 320 x 280 JPEG of a 28 x 28 image, so that resizing and cropping have an effect."""
    large = Image.fromarray(image).resize((280, 280), Image.Resampling.BICUBIC)
    canvas = Image.new("L" if grey else "RGB", (320, 280))
    canvas.paste(large, (20, 0))
    return _jpeg(canvas)


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90)
    return stream.getvalue()


def write_train(root: Path, images: Images, classes: tuple[str, ...]) -> None:
    """Write ROOT/imagenet2012/train/SYNSET/SYNSET_NUMBER.JPEG."""
    mark_as_rehearsal(root / FOLDER)
    for number, (image, label) in enumerate(zip(*images, strict=True), 1):
        synset = classes[label]
        put(root / FOLDER / "train" / synset / f"{synset}_{number}.JPEG", photograph(image))
    record_clean(root)


def write_val(root: Path, images: Images) -> None:
    """Write ROOT/imagenet2012/val/SYNSET/ILSVRC2012_val_NUMBER.JPEG."""
    mark_as_rehearsal(root / FOLDER)
    for number, (image, label) in enumerate(zip(*images, strict=True), 1):
        file = f"ILSVRC2012_val_{number:08d}.JPEG"
        put(root / FOLDER / "val" / SYNSETS[label] / file, photograph(image))
    record_clean(root)


def record_clean(root: Path) -> None:
    """Write the manifest of ROOT/imagenet2012, for the splits in it."""
    splits = [name for name in ("train", "val") if (root / FOLDER / name).is_dir()]
    record_files(root / FOLDER, splits)


def write_variant(layout: str, root: Path, images: Images) -> Path:
    """Write the images of ImageNet-R, -A, -Sketch or -V2; returns the folder with the manifest."""
    place, classes, suffix, grey = VARIANTS[layout]
    top = root / place.partition("/")[0]
    mark_as_rehearsal(top)
    for number, (image, label) in enumerate(zip(*images, strict=True), 1):
        name = classes[label]
        if layout == "imagenet_v2":
            name = str(synsets().index(name))
        put(root / place / name / f"{number:06d}.{suffix}", photograph(image, grey=grey))
    record_files(top, sorted(p.name for p in top.iterdir() if p.is_dir()))
    return top


def write_listed(
    layout: str, root: Path, images: Images, source: Images | None = None
) -> list[Path]:
    """Write ROOT/FOLDER/DOMAIN/CLASS/DOMAIN_CLASS_NUMBER.jpg and the lists; returns both folders.

    Each domain shows the same images, but for `real` if `source` is given; sketches are grey.
    """
    place, lists, domains, classes = LISTED[layout]
    mark_as_rehearsal(root / place)
    mark_as_rehearsal(root / lists)
    for domain in domains:
        lines = []
        shown = source if source is not None and domain == "real" else images
        for number, (image, label) in enumerate(zip(*shown, strict=True), 1):
            name, listed = classes[label]
            file = f"{domain}/{name}/{domain}_{listed:03d}_{number:06d}.jpg"
            put(root / place / file, photograph(image, grey=domain == "sketch"))
            lines.append(f"{file} {listed}\n")
        put(root / lists / f"{domain}_list.txt", "".join(lines).encode())
    record_files(root / place, list(domains))
    record_files(root / lists, [f"{domain}_list.txt" for domain in domains])
    return [root / place, root / lists]


def write_ccc(root: Path, images: Images, level: int = 20) -> Path:
    """Write ROOT/CCC: the nine streams of a level, one tar each; contrast falls image by image.

    As published: members KEY.info, KEY.input.jpg (224 x 224) and KEY.output.cls.
    """
    home = root / "CCC"
    mark_as_rehearsal(home)
    place = {synset: number for number, synset in enumerate(synsets())}
    names = [stream_name(level, speed, seed) for speed in SPEEDS for seed in SEEDS]
    stream = io.BytesIO()
    # The old plain format, whose headers have no additional times and owners.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, (image, label) in enumerate(zip(*images, strict=True)):
            severity = 1 + 5 * number // len(images[1])
            faded = corrupt(_square(image), "contrast", severity, seed=0, index=number)
            members = {
                "info": json.dumps({"contrast": severity}).encode(),
                "input.jpg": _jpeg(Image.fromarray(faded)),
                "output.cls": str(place[SYNSETS[label]]).encode(),
            }
            for kind, content in members.items():
                member = tarfile.TarInfo(f"{number:07d}.{kind}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    for name in names:
        put(home / name / "serial_00000.tar", stream.getvalue())
    record_files(home, names)
    return home


def _square(image: U8) -> U8:
    """An image [28, 28] as uint8 [224, 224, 3]."""
    large = Image.fromarray(image).resize((224, 224), Image.Resampling.BICUBIC)
    return np.asarray(large.convert("RGB"))
