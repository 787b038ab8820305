//! The paper's kernels compared with a naive scan: values and positions, on small columns around the edges of chunks.
//!
//! Without a device these tests print `skipped: no CUDA device` and pass; `RMQ_TEST_CUDA=1` makes them fail instead.
//! `RMQ_TEST_SMALL=1` leaves large columns out and tests fewer small ones, for tools that make a device slow.

use rmq_engine::EngineError;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;
use rmq_engine::cuda::rmq::index::KernelOutput;

use super::device::{DeviceBounds, DeviceColumn, Lab};
use super::kernel::{DeviceQueries, KernelUnderTest};
use super::limit::Ranges;
use super::paper::{BEST_COALESCED, BEST_VECTOR, Cooperation, PaperKernel};
use super::reads::ReadPattern;
use super::tour::TourTime;

/// Opens the first device; `None` if there is none.
fn open() -> Option<Lab> {
    match Lab::open(0) {
        Ok(lab) => Some(lab),
        Err(EngineError::NoDevice { why }) if std::env::var_os("RMQ_TEST_CUDA").is_none() => {
            println!("skipped: no CUDA device ({why})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Entries of a group, of chunks of both kinds of index, of blocks of threads, and their powers.
const EDGES: [usize; 8] = [8, 16, 32, 64, 256, 512, 1024, 32_768];

/// Whether columns are few and small.
fn is_small() -> bool {
    std::env::var_os("RMQ_TEST_SMALL").is_some()
}

/// The most entries of the highest level: of one that is scanned as a whole, and of the smallest one.
const CUTOFFS: [u64; 2] = [64, 1];

/// A key width of the lab.
trait LabKey: Copy + Ord + std::fmt::Debug {
    fn from_bits(bits: u64) -> Self;
    fn to_bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! lab_key {
    ($key:ident) => {
        impl LabKey for $key {
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }

            fn to_bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("bytes of one key"))
            }
        }
    };
}

lab_key!(u32);
lab_key!(u64);

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// The values of a column.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    Uniform,
    Increasing,
    Decreasing,
    /// Few distinct values.
    Ties,
    /// Mostly the greatest key.
    Greatest,
}

const PATTERNS: [Pattern; 5] = [
    Pattern::Uniform,
    Pattern::Increasing,
    Pattern::Decreasing,
    Pattern::Ties,
    Pattern::Greatest,
];

fn keys<K: LabKey>(pattern: Pattern, n: usize, random: &mut Random) -> Vec<K> {
    let key = |i: usize| match pattern {
        Pattern::Uniform => random.next(),
        Pattern::Increasing => i as u64,
        Pattern::Decreasing => (n - i) as u64,
        Pattern::Ties => random.next() % 3,
        Pattern::Greatest if random.below(50) == 0 => random.next(),
        Pattern::Greatest => u64::MAX,
    };
    (0..n).map(key).map(K::from_bits).collect()
}

/// Inclusive bounds within a column: single values, ranges from edge to edge of chunks, the whole column, random ones.
fn ranges(n: usize, random: &mut Random) -> Vec<(usize, usize)> {
    let last = n - 1;
    let mut ranges = vec![(0, 0), (0, last), (last, last), (last / 2, last)];
    for edge in EDGES.into_iter().filter(|edge| *edge <= n) {
        ranges.push((0, edge - 1));
        ranges.push((edge.min(last), last));
        ranges.push((edge - 1, last));
        ranges.push((edge - 1, (2 * edge).min(last)));
        ranges.push((edge.min(last), (3 * edge - 1).min(last)));
    }
    for i in 0..300 {
        let longest = [4, 20, 100, 700, n][i % 5].min(n);
        let length = 1 + random.below(longest);
        let left = random.below(n - length + 1);
        ranges.push((left, left + length - 1));
    }
    ranges
}

/// A kernel's answer to one query.
#[derive(Debug, PartialEq, Eq)]
enum Answer<K> {
    Value(K),
    Position(usize),
}

/// Answers a range by a scan: the smallest value, or its leftmost position.
fn scan<K: LabKey>(keys: &[K], (left, right): (usize, usize), output: KernelOutput) -> Answer<K> {
    let smallest = (left..=right).min_by_key(|i| (keys[*i], *i));
    let position = smallest.expect("ranges are not empty");
    if output == KernelOutput::Position {
        Answer::Position(position)
    } else {
        Answer::Value(keys[position])
    }
}

fn upload(lab: &Lab, bytes: &[u8]) -> DeviceMemory {
    let memory = lab.allocate(bytes.len()).expect("it fits");
    lab.upload(&memory, 0, bytes).expect("the device works");
    memory
}

fn upload_bounds(lab: &Lab, ranges: &[(usize, usize)], wide_positions: bool) -> DeviceBounds {
    let bytes = |bounds: Vec<usize>| -> Vec<u8> {
        let bytes = bounds.iter().map(|bound| bound.to_le_bytes());
        let width = if wide_positions { 8 } else { 4 };
        bytes.flat_map(|bytes| bytes[..width].to_vec()).collect()
    };
    let (left, right) = ranges.iter().copied().unzip();
    DeviceBounds {
        left: upload(lab, &bytes(left)),
        right: upload(lab, &bytes(right)),
        count: ranges.len() as u32,
    }
}

fn upload_column<K: LabKey>(lab: &Lab, keys: &[K], wide_positions: bool) -> DeviceColumn {
    let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_bytes()).collect();
    let mut column = lab
        .column(keys.len() as u64, size_of::<K>())
        .expect("it fits");
    column.wide_positions = wide_positions;
    lab.write(&column, 0, &bytes).expect("the device works");
    column
}

/// Compares a kernel's answers with a scan.
fn check<K: LabKey>(
    lab: &Lab,
    kernel: &KernelUnderTest,
    bounds: &DeviceBounds,
    keys: &[K],
    ranges: &[(usize, usize)],
    what: &str,
) {
    let answers = lab.answers(bounds.count).expect("it fits");
    let queries = DeviceQueries {
        bounds,
        answers: &answers,
        count: bounds.count,
    };
    lab.answer(kernel, queries, 1).expect("the device works");
    let (memory, width) = match kernel.output {
        KernelOutput::Position => (&answers.positions, 8),
        _ => (&answers.values, size_of::<K>()),
    };
    let mut bytes = vec![0; ranges.len() * width];
    lab.download(memory, 0, &mut bytes)
        .expect("the device works");
    for (range, bytes) in ranges.iter().zip(bytes.chunks(width)) {
        let found = if kernel.output == KernelOutput::Position {
            Answer::Position(u64::from_bytes(bytes) as usize)
        } else {
            Answer::Value(K::from_bytes(bytes))
        };
        let expected = scan(keys, *range, kernel.output);
        assert_eq!(found, expected, "{what}, {range:?}");
    }
}

/// What is tested.
#[derive(Debug, Clone, Copy)]
enum Tested {
    Ours,
    Lca,
    Tour(TourTime),
    Paper(PaperKernel),
}

/// Tests a kernel at all sizes and cutoffs, with both widths of positions.
fn test_sizes<K: LabKey>(lab: &Lab, tested: Tested, outputs: &[KernelOutput]) {
    // The heat map and trees have kernels with positions of 32 bits only.
    let narrow_only = matches!(
        tested,
        Tested::Lca
            | Tested::Tour(_)
            | Tested::Paper(
                PaperKernel::Coalesced { heat_map: true, .. }
                    | PaperKernel::Vector { heat_map: true, .. }
            )
    );
    let cutoffs = match tested {
        Tested::Paper(
            PaperKernel::Coalesced { .. }
            | PaperKernel::Vector { .. }
            | PaperKernel::OneSided { .. },
        ) => &CUTOFFS,
        _ => &CUTOFFS[..1],
    };
    let mut random = Random(20_260_901);
    let mut sizes = vec![1, 2, 3];
    sizes.extend(EDGES.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]));
    if is_small() {
        sizes = vec![1, 33, 1025];
    }
    for n in sizes {
        let pattern = PATTERNS[random.below(PATTERNS.len())];
        let keys = keys::<K>(pattern, n, &mut random);
        let ranges = ranges(n, &mut random);
        for wide_positions in [false, true] {
            if wide_positions && narrow_only {
                continue;
            }
            let column = upload_column(lab, &keys, wide_positions);
            let bounds = upload_bounds(lab, &ranges, wide_positions);
            for output in outputs {
                for cutoff in cutoffs {
                    let prepared = match tested {
                        Tested::Paper(kernel) => lab.paper(&column, kernel, *output, *cutoff, 1),
                        Tested::Ours => lab.ours(&column, *output, None, 1),
                        Tested::Lca => lab.lca(&column, *output, 1),
                        Tested::Tour(time) => lab.lca_tour(&column, time, bounds.count, 1),
                    };
                    let prepared = prepared.expect("it fits");
                    let what = format!(
                        "{tested:?}, {output:?}, n {n}, {pattern:?}, cutoff {cutoff}, wide {wide_positions}"
                    );
                    check(lab, &prepared, &bounds, &keys, &ranges, &what);
                }
            }
        }
    }
}

fn test_kernel(tested: Tested) {
    let Some(lab) = open() else { return };
    let outputs = [KernelOutput::Value, KernelOutput::Position];
    test_sizes::<u32>(&lab, tested, &outputs);
    test_sizes::<u64>(&lab, tested, &outputs);
}

/// Tests a kernel that answers with values only.
fn test_values(tested: Tested) {
    let Some(lab) = open() else { return };
    test_sizes::<u32>(&lab, tested, &[KernelOutput::Value]);
    test_sizes::<u64>(&lab, tested, &[KernelOutput::Value]);
}

fn coalesced(cooperation: Cooperation) -> PaperKernel {
    let (group, chunk) = BEST_COALESCED;
    PaperKernel::Coalesced {
        group,
        chunk,
        cooperation,
        heat_map: false,
    }
}

#[test]
fn coalesced_loads_match_a_scan() {
    test_kernel(Tested::Paper(coalesced(Cooperation::Queue)));
}

#[test]
fn multi_load_matches_a_scan() {
    test_kernel(Tested::Paper(coalesced(Cooperation::MultiLoad)));
}

#[test]
fn coalesced_loads_without_shuffles_match_a_scan() {
    test_values(Tested::Paper(coalesced(Cooperation::NoShuffle)));
}

#[test]
fn coalesced_loads_without_warp_intrinsics_match_a_scan() {
    test_values(Tested::Paper(coalesced(Cooperation::AtomicMin)));
}

#[test]
fn vector_loads_match_a_scan() {
    test_kernel(Tested::Paper(PaperKernel::Vector {
        chunk: BEST_VECTOR,
        heat_map: false,
    }));
}

#[test]
fn full_scan_matches_a_scan_on_the_host() {
    test_kernel(Tested::Paper(PaperKernel::FullScan));
}

#[test]
fn full_scan_by_warps_matches_a_scan_on_the_host() {
    test_kernel(Tested::Paper(PaperKernel::WarpScan));
}

#[test]
fn lowest_common_ancestors_match_a_scan() {
    test_kernel(Tested::Lca);
}

#[test]
fn lowest_common_ancestors_by_an_euler_tour_match_a_scan() {
    test_values(Tested::Tour(TourTime::Search));
    test_values(Tested::Tour(TourTime::WholeTrip));
}

#[test]
fn vector_loads_that_compare_one_end_match_a_scan() {
    test_values(Tested::Paper(PaperKernel::OneSided { chunk: BEST_VECTOR }));
}

/// More values than one scan of sums covers.
#[test]
fn large_trees_have_our_answers() {
    if is_small() {
        return;
    }
    let Some(lab) = open() else { return };
    let count = 1 << 20;
    let column = lab.column((5 << 20) + 77, 4).expect("it fits");
    lab.fill_uniform(&column).expect("the device works");
    let bounds = lab.bounds(Ranges::Mixed, &column, count).expect("it fits");
    for output in [KernelOutput::Value, KernelOutput::Position] {
        let mut all = Vec::new();
        let mut kernels = vec![
            lab.ours(&column, output, None, 1),
            lab.lca(&column, output, 1),
        ];
        if output == KernelOutput::Value {
            kernels.push(lab.lca_tour(&column, TourTime::Search, count, 1));
        }
        for kernel in kernels {
            let answers = lab.answers(count).expect("it fits");
            let kernel = kernel.expect("it fits");
            let queries = DeviceQueries {
                bounds: &bounds,
                answers: &answers,
                count,
            };
            lab.answer(&kernel, queries, 1).expect("the device works");
            all.push(answers);
        }
        for answers in &all[1..] {
            let wrong = lab.differ(&all[0], answers, output, 4, count);
            assert_eq!(wrong.expect("the device works"), 0, "{output:?}");
        }
    }
}

#[test]
fn a_scan_by_all_threads_matches_a_scan_on_the_host() {
    fn test<K: LabKey>(lab: &Lab) {
        let mut random = Random(20_261_125);
        let n = 5000;
        for pattern in PATTERNS {
            let keys = keys::<K>(pattern, n, &mut random);
            let ranges: Vec<_> = ranges(n, &mut random).into_iter().take(60).collect();
            for wide_positions in [false, true] {
                let column = upload_column(lab, &keys, wide_positions);
                let bounds = upload_bounds(lab, &ranges, wide_positions);
                let answers = lab.answers(bounds.count).expect("it fits");
                let what = (KernelOutput::Position, bounds.count);
                lab.scan_by_all_threads(&column, &bounds, &answers, what)
                    .expect("the device works");
                let mut values = vec![0; ranges.len() * size_of::<K>()];
                let mut positions = vec![0; ranges.len() * 8];
                lab.download(&answers.values, 0, &mut values)
                    .expect("the device works");
                lab.download(&answers.positions, 0, &mut positions)
                    .expect("the device works");
                let found = values.chunks(size_of::<K>()).zip(positions.chunks(8));
                for (range, (value, position)) in ranges.iter().zip(found) {
                    let value = Answer::Value(K::from_bytes(value));
                    assert_eq!(value, scan(&keys, *range, KernelOutput::Value), "{range:?}");
                    let position = Answer::Position(u64::from_bytes(position) as usize);
                    assert_eq!(
                        position,
                        scan(&keys, *range, KernelOutput::Position),
                        "{range:?}"
                    );
                }
            }
        }
    }
    let Some(lab) = open() else { return };
    test::<u32>(&lab);
    test::<u64>(&lab);
}

#[test]
fn sorted_bounds_ascend() {
    let Some(lab) = open() else { return };
    let count = 1 << 12;
    let column = lab.column(1 << 20, 4).expect("it fits");
    let bounds = lab.bounds(Ranges::Mixed, &column, count).expect("it fits");
    let words = |memory| lab.words(memory, 1 << 12).expect("the device works");
    let pairs = || -> Vec<_> {
        let left = words(&bounds.left).into_iter();
        left.zip(words(&bounds.right)).collect()
    };
    let mut expected = pairs();
    expected.sort_unstable();
    lab.sort(&bounds, &column).expect("the device works");
    assert_eq!(pairs(), expected);
}

/// Figure 4: threads of a group read neighbouring words of a segment, or all of them its first word.
#[test]
fn random_reads_are_of_the_words_that_figure_4_names() {
    const WORDS: u32 = 1 << 14;
    const UNTOUCHED: u32 = u32::MAX - 1;
    let Some(lab) = open() else { return };
    for group in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        for marked in [0, group - 1] {
            // In each segment, one word is the greatest. A thread that has read nothing else says so.
            let word = |i| if i % group == marked { u32::MAX } else { 0 };
            let words: Vec<u8> = (0..WORDS).flat_map(|i| word(i).to_le_bytes()).collect();
            let memory = upload(&lab, &words);
            for pattern in [ReadPattern::Segments, ReadPattern::SameAddress] {
                let out = upload(&lab, &UNTOUCHED.to_le_bytes());
                let what = (pattern, group);
                lab.read_at_random(&memory, words.len(), what, 1 << 10, &out)
                    .expect("the device works");
                let found = lab.words(&out, 1).expect("the device works")[0];
                if pattern == ReadPattern::SameAddress && marked != 0 {
                    assert_eq!(found, UNTOUCHED, "{what:?}");
                } else {
                    assert!(found < 1 << 10, "{what:?}, word {marked}: {found}");
                    let lane = found % group;
                    assert!(
                        pattern == ReadPattern::SameAddress || lane == marked,
                        "{what:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn our_kernel_matches_a_scan() {
    test_kernel(Tested::Ours);
}

#[test]
fn the_heat_map_matches_a_scan() {
    let Some(lab) = open() else { return };
    for (group, chunk) in [(1, 8), (2, 16), (8, 8), (32, 64), (4, 128)] {
        for cooperation in [Cooperation::Queue, Cooperation::MultiLoad] {
            let kernel = PaperKernel::Coalesced {
                group,
                chunk,
                cooperation,
                heat_map: true,
            };
            test_sizes::<u32>(&lab, Tested::Paper(kernel), &[KernelOutput::Value]);
        }
    }
    for chunk in [4, 8, 16, 32] {
        let kernel = PaperKernel::Vector {
            chunk,
            heat_map: true,
        };
        test_sizes::<u32>(&lab, Tested::Paper(kernel), &[KernelOutput::Value]);
    }
}
