"""Pictures of the simulated world against the truth beside them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from modeld.vehicle.cameras import VIEW_FROM_DEVICE, Camera, rot_from_euler
from tests.tools.world.roads import body_on, changing_road, lanes_of, uniform_road, world_of
from tools.simulator.world.curves import Floats
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.scenery import PLAIN, random_scenery
from tools.simulator.world.traffic import Vehicle
from tools.simulator.world.view import MED_LENS, WIDE_LENS, Lens, Mount
from tools.simulator.world.world import MarkingKind, World, random_world

HEIGHT_M = 1.22
CAMERA = Lens.of(Camera(1344, 760, 1141.5))
LEVEL = (0.0, 0.0, 0.0)
CAR = Vehicle(40.0, 0.0, 10.0, 0.0, 1.8, 1.5, 4.4, 0)


def marked_world(**road: float) -> World:
    """A black road with one white line on its right, and nothing else."""
    lanes = lanes_of(2)
    none = replace(lanes.markings[0], kind=MarkingKind.NONE)
    lanes = replace(lanes, markings=(none, none, lanes.markings[2]), right_edge_m=9.0)
    black = (50.0, 128.0, 128.0)
    look = replace(PLAIN, asphalt=black, verge=black, haze_m=1e5)
    look = replace(look, asphalt_grain=0.0, verge_grain=0.0, tracks=0.0, shoulder=0.0, post_m=0.0)
    return replace(world_of(uniform_road(**road), lanes), scenery=look)


class Scene:
    """The marked world seen from a car at (s, offset), turned by an angle."""

    def __init__(
        self,
        lens: Lens = MED_LENS,
        rpy_rad: tuple[float, float, float] = LEVEL,
        at: tuple[float, float, float] = (0.0, 0.0, 0.0),
        world: World | None = None,
    ) -> None:
        self.world, self.mount = world or marked_world(), Mount(lens, rpy_rad, HEIGHT_M)
        self.body = body_on(self.world, at[0], at[1], 15.0, at[2])

    def paint(self, *cars: Vehicle, number: int = 0, **look: Any) -> Picture:
        """Paint it looking different in some ways; the number seeds its noise."""
        world = replace(self.world, scenery=replace(self.world.scenery, **look))
        return Painter(world, self.mount).paint(self.body, cars, number)

    def luma(self, *cars: Vehicle, **look: Any) -> Floats:
        return self.paint(*cars, **look).luma.astype(np.float64)

    def project(self, points_m: Floats) -> Floats:
        """Project points (n, 3) of the calibrated frame into (n, 2) pixels."""
        lens = self.mount.lens
        view = points_m @ (VIEW_FROM_DEVICE @ rot_from_euler(self.mount.rpy_rad)).T
        return np.array([lens.cx_px, lens.cy_px]) + lens.focal_px * view[:, :2] / view[:, 2:]

    def points(self, s_m: Floats, offset_m: float | Floats) -> Floats:
        """Return points of the road in the calibrated frame, (n, 3)."""
        x, y, z = self.body.seen(*self.world.road.places(s_m, offset_m))
        return np.stack([x, y, z + HEIGHT_M], axis=1)

    def line(self, offset_m: float) -> Floats:
        """Return points of a line along the road, before the car."""
        return self.points(self.body.s_m + np.linspace(2.0, 45.0, 3000), offset_m)


@pytest.mark.parametrize(
    ("lens", "rpy_rad"),
    [
        (MED_LENS, LEVEL),
        (WIDE_LENS, LEVEL),
        (MED_LENS, (0.01, -0.02, 0.03)),
        (WIDE_LENS, (-0.02, 0.03, -0.02)),
        (CAMERA, (0.0, 0.02, -0.01)),
    ],
)
@pytest.mark.parametrize(
    "road",
    [
        {},
        {"curvature_1pm": 0.004},
        {"curvature_1pm": -0.006, "bank_rad": -0.05},
        {"grade_rad": 0.06, "bank_rad": 0.03},
    ],
)
def test_line_is_where_it_projects(
    lens: Lens, rpy_rad: tuple[float, float, float], road: dict[str, float]
) -> None:
    scene = Scene(lens, rpy_rad, (30.0, -0.4, 0.02), marked_world(**road))
    luma, line = scene.luma(), scene.project(scene.line(scene.world.lanes.markings[2].offset_m))
    rows = np.arange(lens.height)
    columns = np.interp(rows, line[::-1, 1], line[::-1, 0])
    slope = np.abs(np.gradient(columns))
    inside = (rows > line[:, 1].min() + 1) & (rows < line[:, 1].max() - 1) & (slope < 12.0)
    inside &= (columns > 25) & (columns < lens.width - 25)
    assert inside.sum() > 15
    for row in rows[inside]:
        reach = round(5 + 5 * slope[row])
        near = slice(max(0, int(columns[row]) - reach), int(columns[row]) + reach + 2)
        weight = np.maximum(luma[row, near] - 52.0, 0.0)
        found = (weight * np.arange(near.start, near.start + weight.size)).sum() / weight.sum()
        assert found == pytest.approx(columns[row], abs=0.35 + 0.05 * slope[row])


def test_line_covers_its_width() -> None:
    # 0.15 m at 12 m are 0.15 / 12 * 910 = 11.4 px; it is 216 - 50 brighter than the road.
    row = round(MED_LENS.cy_px + MED_LENS.focal_px * HEIGHT_M / 12.0)
    luma = Scene(at=(30.0, 1.75, 0.0)).luma()[row]
    added = (luma - 50.0).clip(0.0).sum() / (PLAIN.paint - 50.0)
    assert added == pytest.approx(0.15 / 12.0 * MED_LENS.focal_px, rel=0.06)


def test_crest_hides_what_is_behind_it() -> None:
    # 50 m of 5 % up, then 5 % down: the road behind the crest is below the line of sight.
    road = changing_road(660.0, grade=lambda s: np.where(s < 50.0, 0.05, -0.05))
    world = replace(marked_world(), road=road, lanes=lanes_of(2))
    scene = Scene(at=(0.0, -1.75, 0.0), world=world)
    empty = scene.luma()
    # The crest: 50 m ahead along the car's own slope.
    crest, middle = round(MED_LENS.cy_px + MED_LENS.focal_px * HEIGHT_M / 50.0), slice(160, 352)
    assert np.abs(empty[crest + 4 :, 256] - 50).max() < 12
    assert (empty[crest + 4, middle] > 60).any(), "lines up to the crest"
    assert (empty[crest - 3, middle] > 120).all(), "the sky behind it"
    behind = replace(CAR, s_m=110.0, height_m=1.2)
    assert np.abs(scene.luma(behind) - empty).max() < 2
    tall = replace(CAR, s_m=60.0, height_m=3.6)
    shown = np.abs(scene.luma(tall) - empty) > 20
    rows = np.flatnonzero(shown.any(axis=1))
    assert rows.size > 20
    assert rows.max() <= crest + 2


@pytest.mark.parametrize("ahead_m", [8.0, 25.0, 70.0])
@pytest.mark.parametrize("lens", [MED_LENS, WIDE_LENS])
def test_car_stands_where_it_projects(lens: Lens, ahead_m: float) -> None:
    bend, car = marked_world(curvature_1pm=0.001), replace(CAR, s_m=10.0 + ahead_m, offset_m=-1.75)
    scene = Scene(lens, (0.0, 0.01, -0.01), (10.0, -1.75, 0.0), bend)
    changed = np.abs(scene.luma(car) - scene.luma()) > 12
    corners = scene.points(np.array([car.s_m] * 2), np.array([-2.65, -0.85]))
    (left, foot), (right, _) = scene.project(corners)
    top = scene.project(corners - [0.0, 0.0, 1.5])[0, 1]
    # Between lamps and windows the body is nearly as wide as the car.
    columns = np.flatnonzero(changed[round(top + 0.39 * (foot - top))])
    slack = 1.6 + 0.03 * (right - left)
    assert columns[0] - 0.5 == pytest.approx(left, abs=slack)
    assert columns[-1] + 0.5 == pytest.approx(right, abs=slack)
    rows = np.flatnonzero(changed[:, round(0.5 * (left + right))])
    assert rows[0] - 0.5 == pytest.approx(max(top, -0.5), abs=1.5)


def test_braking_lights_the_lamps() -> None:
    scene, car = Scene(), replace(CAR, s_m=15.0)
    difference = scene.luma(replace(car, acceleration_mps2=-3.0)) - scene.luma(car)
    assert difference.min() >= -1
    assert 100 < (difference > 50).sum() < 3000


def test_cars_beside_show_their_sides() -> None:
    scene = Scene(WIDE_LENS, at=(0.0, -1.75, 0.0))
    # Its rear is behind the lens, its front before it.
    beside = replace(CAR, s_m=-1.0, offset_m=2.5, length_m=12.0, width_m=2.5, height_m=3.5)
    shown = np.flatnonzero((np.abs(scene.luma(beside) - scene.luma()) > 15).any(axis=0))
    # Its near side is 3 m to the right; its front is at 11 m.
    assert shown[0] == pytest.approx(256.0 + 455.0 * 3.0 / 11.0, abs=2)
    assert shown[-1] == 511
    assert_array_equal(scene.luma(replace(beside, s_m=-13.0)), scene.luma())


def test_colour_lies_where_brightness_does() -> None:
    world = marked_world()
    yellow = replace(world.lanes.markings[2], is_yellow=True)
    world = replace(world, lanes=replace(world.lanes, markings=(*world.lanes.markings[:2], yellow)))
    picture = Scene(at=(30.0, 0.0, 0.0), world=world).paint()
    differences = []
    for row in range(90, 130, 2):
        bright = np.maximum(picture.luma[row : row + 2].mean(axis=0) - 52.0, 0.0)
        tinted = np.maximum(128.0 - picture.u[row // 2], 0.0)
        # A sample j of the colours lies at column 2 j + 0.5.
        middle = (bright * np.arange(512)).sum() / bright.sum()
        tone = (tinted * (2.0 * np.arange(256) + 0.5)).sum() / tinted.sum()
        differences.append(tone - middle)
    assert abs(float(np.mean(differences))) < 0.2


@pytest.mark.parametrize(("bank_rad", "roll_rad"), [(0.05, 0.0), (0.0, 0.05), (0.04, -0.03)])
def test_bank_and_roll_tilt_the_horizon(bank_rad: float, roll_rad: float) -> None:
    world = marked_world(bank_rad=bank_rad)
    scene = Scene(WIDE_LENS, (roll_rad, 0.0, 0.0), (30.0, 0.0, 0.0), world)
    luma = scene.luma(hills_rad=0.0, treeline_rad=0.0)
    # Two points far away that are level with the car in the world, turned into its frame.
    far = 1e6 * np.array([[1.0, aside, 0.0] for aside in (-0.55, 0.55)])
    level = scene.project(far @ rot_from_euler((bank_rad, 0.0, 0.0)))
    rows = np.interp([20, 490], level[:, 0], level[:, 1])
    for column, row in zip((20, 490), rows, strict=True):
        assert np.flatnonzero(luma[:, column] < 100)[0] == pytest.approx(row, abs=2.5)


@pytest.mark.parametrize("seed", range(12))
def test_pictures_are_the_same_in_any_order_and_for_longer_worlds(seed: int) -> None:
    world = random_world(seed, 600.0)
    centre_m = world.lanes.centre_m
    body = body_on(world, 120.0, centre_m(0), 15.0, 0.01)
    cars = tuple(
        replace(CAR, s_m=122.0 + 17.0 * k, offset_m=centre_m(k), paint=seed + k)
        for k in range(world.lanes.count)
    )
    mount = Mount((MED_LENS, WIDE_LENS)[seed % 2], (0.01, 0.02, -0.01), 1.0 + 0.05 * seed)
    one, two = Painter(world, mount), Painter(random_world(seed, 900.0), mount)
    two.paint(body, cars[:1], 77)
    for plane, other in zip(one.paint(body, cars, 5), two.paint(body, cars[::-1], 5), strict=True):
        assert plane.dtype == np.uint8
        assert plane.shape in {(256, 512), (128, 256)}
        assert_array_equal(plane, other)
        assert plane.min() >= 16
        assert plane.max() <= 235


def test_number_seeds_noise_only() -> None:
    scene = Scene()
    assert_array_equal(scene.luma(number=1), scene.luma(number=2))
    one, two = (scene.luma(number=number, noise=4.0) for number in (1, 2))
    assert np.std(one[120:, 200:300] - two[120:, 200:300]) == pytest.approx(4.0 * 2**0.5, rel=0.1)
    assert abs((one - scene.luma(number=1)).mean()) < 0.2


def test_night_is_dark_but_before_the_car() -> None:
    day, dark = Scene().luma(), Scene().luma(light=0.0)
    assert dark[:40].mean() < 0.3 * day[:40].mean()
    assert dark[150:250, 200:300].mean() > dark[52:60, 200:300].mean() + 10.0
    assert dark[200, 256] > dark[200, 20]


def test_weather_and_blur_lower_the_contrast() -> None:
    def sharpness(**look: float) -> float:
        return float(np.square(np.diff(Scene().luma(**look)[100:], axis=1)).sum())

    clear = sharpness()
    assert sharpness(haze_m=40.0) < 0.8 * clear
    blurred = [sharpness(blur=level) for level in (1, 2, 3)]
    assert clear > blurred[0] > blurred[1] > blurred[2]


def test_woods_stand_where_their_foot_projects() -> None:
    world, at = marked_world(curvature_1pm=0.002), (30.0, 0.0, 0.0)
    scene = Scene(WIDE_LENS, (0.0, 0.01, -0.01), at, world)
    look = {"woods_m": (5.0, 0.0), "woods_beyond_m": 3.0, "woods_rough": 0.0}
    changed = np.abs(scene.luma(**look, woods=(130.0, 100.0, 128.0)) - scene.luma()) > 6
    foot = scene.line(world.lanes.right_edge_m + 3.0)
    low, high = scene.project(foot), scene.project(foot - [0.0, 0.0, 5.0])
    for column in (410, 450, 490):
        rows = np.flatnonzero(changed[:, column])
        bottom, top = (np.interp(column, edge[::-1, 0], edge[::-1, 1]) for edge in (low, high))
        assert rows[-1] == pytest.approx(bottom, abs=2.0)
        assert rows[0] == pytest.approx(max(top, 0.0), abs=3.0 + 0.03 * (bottom - top))
    assert not changed[:, :200].any(), "nothing on the left"


def test_posts_stand_along_the_edges() -> None:
    scene = Scene(at=(10.0, 0.0, 0.0))
    changed = np.abs(scene.luma(post_m=25.0) - scene.luma()) > 20
    # 0.7 m beyond the edges, at s = 50: 40 m ahead, from the ground to 1 m.
    lanes = scene.world.lanes
    for edge in (lanes.left_edge_m - 0.7, lanes.right_edge_m + 0.7):
        column = round(MED_LENS.cx_px + MED_LENS.focal_px * edge / 40.0)
        rows = np.flatnonzero(changed[:, column - 1 : column + 2].any(axis=1))
        assert rows[-1] == pytest.approx(MED_LENS.cy_px + 910.0 * HEIGHT_M / 40.0, abs=1.5)
        assert rows.size == pytest.approx(910.0 / 40.0, abs=2.0)


def test_low_sun_shines_into_the_lens_it_stands_before() -> None:
    plain, shining, behind = (
        Scene(WIDE_LENS).luma(glare=glare, sun_azimuth_rad=azimuth_rad)
        for glare, azimuth_rad in ((0.0, 0.3), (1.0, 0.3), (1.0, 3.0))
    )
    added = shining - plain
    # Its place: 455 tan(0.3) right of the middle, 455 * 0.12 over the horizon.
    column, row = round(256 + 455 * np.tan(0.3)), round(151.8 - 455 * 0.12 / np.cos(0.3))
    assert added[180:].mean() > 5.0
    assert added.max() <= 235 - plain.min()
    assert (shining[row - 2 : row + 3, column] == 235).all()
    assert_array_equal(behind, plain)


def test_random_looks_differ_and_stay_visible() -> None:
    rng = np.random.default_rng(3)
    looks = [random_scenery(rng) for _ in range(300)]
    assert len({look.texture for look in looks}) == 300
    assert 0.08 < np.mean([look.light < 0.35 for look in looks]) < 0.25
    for look in looks:
        assert look.paint >= look.asphalt[0] + 60.0
        assert look.yellow[0] >= look.asphalt[0] + 40.0
    # The road of the footage: asphalt 95 +- 10, new paint 222, beside a sky of 157.
    assert min(look.asphalt[0] for look in looks) < 85.0
    assert max(look.asphalt[0] for look in looks) > 105.0
    assert max(look.paint * look.exposure for look in looks) > 225.0


@pytest.mark.parametrize("seed", range(40))
def test_any_place_and_direction_gives_a_picture(seed: int) -> None:
    """From beside the road, across it, at its end, inside a car."""
    rng, world = np.random.default_rng(seed), random_world(seed, 200.0)
    s = float(rng.uniform(-50.0, 600.0))
    offset = float(rng.uniform(-40.0, 40.0)) if seed % 2 else 0.0
    turn = float(rng.uniform(-3.1, 3.1)) if seed % 3 else 0.0
    body = body_on(world, s, offset, 10.0, turn)
    cars = [
        replace(
            CAR,
            s_m=body.s_m + float(rng.uniform(-8.0, 6.0)),
            offset_m=offset + float(rng.uniform(-4.0, 4.0)),
            acceleration_mps2=-2.0,
            height_m=(1.5, 2.2, 3.5)[k],
            paint=k,
        )
        for k in range(3)
    ]
    roll, pitch, yaw = rng.uniform(-0.08, 0.08, 3).tolist()
    lens, height_m = (MED_LENS, WIDE_LENS)[seed % 2], float(rng.uniform(0.8, 2.2))
    with np.errstate(all="raise"):
        picture = Painter(world, Mount(lens, (roll, pitch, yaw), height_m)).paint(body, cars, seed)
    for plane in picture:
        assert plane.dtype == np.uint8
        assert 16 <= plane.min() <= plane.max() <= 240
