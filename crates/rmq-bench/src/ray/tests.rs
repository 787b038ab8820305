//! All systems compared with a naive scan, on columns around the edges of chunks and blocks.
//!
//! Without a device these tests print `skipped: no Vulkan ray tracing` and pass; `RMQ_TEST_VULKAN=1` makes them fail
//! instead.

use rmq_bench::random::mix;

use super::acceleration::Building;
use super::device::Vulkan;
use super::error::VulkanError;
use super::layout::{Planes, rank_planes, value_planes};
use super::search::{RayColumn, RayQueries, RaySearch, Shaders};

/// Opens a device; `None` if there is none.
fn open() -> Option<Vulkan> {
    match Vulkan::open() {
        Ok(vulkan) => Some(vulkan),
        Err(error @ VulkanError::Unavailable(_))
            if std::env::var_os("RMQ_TEST_VULKAN").is_none() =>
        {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Lengths of columns.
const SIZES: [u32; 9] = [1, 2, 33, 1000, 1024, 1025, 5000, 40_000, 100_000];

/// The most entries of the highest level.
const CUTOFFS: [u32; 3] = [1, 32, 2048];

const BUILDINGS: [Building; 2] = [Building::Updatable, Building::Compacted];

/// Columns of floats that are not negative, as bits.
fn columns(n: u32) -> [(&'static str, Vec<u32>); 4] {
    let unit = |i: u32| (mix(u64::from(i) + u64::from(n)) >> 40) as f32 / (1 << 24) as f32;
    [
        ("uniform", (0..n).map(|i| unit(i).to_bits()).collect()),
        ("increasing", (0..n).map(|i| 0x3000_0000 + i).collect()),
        ("decreasing", (0..n).map(|i| 0x3000_0000 + n - i).collect()),
        (
            "ties",
            (0..n).map(|i| (unit(i) * 3.0).floor().to_bits()).collect(),
        ),
    ]
}

/// Ranges within a column: single values, ranges from edge to edge of chunks and blocks, the whole column, random ones.
fn ranges(n: u32) -> (Vec<u32>, Vec<u32>) {
    let last = n - 1;
    let mut ranges = vec![(0, 0), (0, last), (last, last), (last / 2, last)];
    for edge in [16, 32, 64, 1024, 2048, 4096]
        .into_iter()
        .filter(|edge| *edge <= n)
    {
        ranges.extend([(0, edge - 1), (edge - 1, last), (edge.min(last), last)]);
        ranges.push((edge - 1, (2 * edge).min(last)));
        ranges.push((edge.min(last), (3 * edge - 1).min(last)));
    }
    for i in 0..300 {
        let random =
            |bound: u32, k: u64| (mix(i * 2 + k + u64::from(n) * 7919) % u64::from(bound)) as u32;
        let length = 1 + random([4, 20, 100, 700, n][i as usize % 5].min(n), 0);
        let left = random(n - length + 1, 1);
        ranges.push((left, left + length - 1));
    }
    ranges.into_iter().unzip()
}

fn scan(values: &[u32], left: &[u32], right: &[u32]) -> Vec<u32> {
    let least = |(l, r): (&u32, &u32)| values[*l as usize..=*r as usize].iter().min();
    let pairs = left.iter().zip(right).map(least);
    pairs
        .map(|least| *least.expect("ranges are not empty"))
        .collect()
}

fn answer(vulkan: &Vulkan, search: &RaySearch<'_>, queries: &RayQueries<'_>) -> Vec<u32> {
    (search.answer(vulkan, queries, 1)).expect("the device works");
    queries.answers(vulkan).expect("the device works")
}

/// Compares searches of many columns with a scan. `searches` builds those of a column, each with what is special about
/// it.
fn compare(searches: impl for<'v> Fn(&RayColumn<'v>, &Planes) -> Vec<(String, RaySearch<'v>)>) {
    let Some(vulkan) = open() else { return };
    let shaders = Shaders::new(&vulkan).expect("they compile");
    for n in SIZES {
        let (left, right) = ranges(n);
        let queries = vulkan.queries(&left, &right).expect("it fits");
        for (data, values) in columns(n) {
            let expected = scan(&values, &left, &right);
            let column = shaders.column(&values).expect("it fits");
            let planes = rank_planes(&values).expect("there are few");
            for (what, search) in searches(&column, &planes) {
                let found = answer(&vulkan, &search, &queries);
                assert_eq!(found, expected, "{data}, n {n}, {what}");
            }
        }
    }
}

#[test]
fn rtxrmq_matches_a_scan() {
    compare(|column, planes| {
        let search = |(shift, building)| {
            let search = column.rtxrmq(planes, shift, building);
            let what = format!("blocks of 2^{shift}, {building:?}");
            (what, search.expect("it fits"))
        };
        let builds = [1, 5, 10, 15].map(|shift| BUILDINGS.map(|building| (shift, building)));
        builds.into_iter().flatten().map(search).collect()
    });
}

#[test]
fn published_planes_are_near_a_scan() {
    let Some(vulkan) = open() else { return };
    let shaders = Shaders::new(&vulkan).expect("they compile");
    let n = 40_000;
    let (left, right) = ranges(n);
    let queries = vulkan.queries(&left, &right).expect("it fits");
    let (_, values) = &columns(n)[0];
    let column = shaders.column(values).expect("it fits");
    for building in BUILDINGS {
        let search = column.rtxrmq(&value_planes(values), 10, building);
        let found = answer(&vulkan, &search.expect("it fits"), &queries);
        for (found, expected) in found.iter().zip(scan(values, &left, &right)) {
            let difference = f32::from_bits(*found) - f32::from_bits(expected);
            assert!((0.0..1e-6).contains(&difference), "{difference}");
        }
    }
}

#[test]
fn levels_match_a_scan() {
    compare(|column, _| {
        let search = |cutoff| {
            let search = column.levels_alone(cutoff).expect("it fits");
            (format!("cutoff {cutoff}"), search)
        };
        CUTOFFS.map(search).into()
    });
}

#[test]
fn levels_with_rays_match_a_scan() {
    compare(|column, planes| {
        let search = |(cutoff, building)| {
            let search = column.levels_with_rays(planes, cutoff, building);
            (
                format!("cutoff {cutoff}, {building:?}"),
                search.expect("it fits"),
            )
        };
        let builds = CUTOFFS.map(|cutoff| BUILDINGS.map(|building| (cutoff, building)));
        builds.into_iter().flatten().map(search).collect()
    });
}

#[test]
fn what_is_freed_is_counted() {
    let Some(vulkan) = open() else { return };
    {
        let shaders = Shaders::new(&vulkan).expect("they compile");
        let (_, values) = &columns(5000)[0];
        let column = shaders.column(values).expect("it fits");
        let planes = rank_planes(values).expect("there are few");
        let search = column.rtxrmq(&planes, 10, Building::Compacted);
        let search = search.expect("it fits");
        assert!(search.build.index_bytes > 0 && search.build.build_bytes > 0);
        assert!(vulkan.allocated() > search.build.index_bytes);
    }
    assert_eq!(vulkan.allocated(), 0);
}
