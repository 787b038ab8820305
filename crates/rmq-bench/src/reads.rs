//! The section of random reads, figure 4 of the paper.

use rmq_engine::EngineError;

use rmq_bench::data::Data;
use rmq_bench::table::{Table, three_digits};
use rmq_bench::workload::Workload;

use crate::lab::device::Lab;
use crate::lab::reads::{L2_BYTES, ReadPattern};
use crate::record::{Case, Record, Section, Setting};
use crate::run::Run;
use rmq_bench::kinds::{ResultKind, Width};

/// Threads of a group, up to a block.
const GROUPS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

const PATTERNS: [(ReadPattern, &str); 2] = [
    (ReadPattern::Segments, "neighbouring words"),
    (ReadPattern::SameAddress, "the same word"),
];

/// The number of steps.
pub const STEPS: usize = 2 * PATTERNS.len() * GROUPS.len();

/// Measures random reads of groups of threads, each thread 4 bytes, from the L2 cache and from the device's memory.
///
/// # Errors
/// Those of the driver.
pub fn measure(run: &mut Run, lab: &Lab) -> Result<(), EngineError> {
    let memory = lab.random_memory()?;
    let places = [("L2 cache", L2_BYTES), ("memory", memory.bytes())];
    let series: Vec<_> = (PATTERNS.iter())
        .flat_map(|pattern| places.map(|place| (*pattern, place)))
        .collect();
    let names = (series.iter()).map(|((_, words), (place, _))| format!("{words}, {place}, ns"));
    let header = std::iter::once("threads of a group".to_owned()).chain(names);
    let mut table = Table::new("Random reads, 4 bytes a thread", header);
    for group in GROUPS {
        let mut cells = Vec::new();
        for ((pattern, words), (place, bytes)) in &series {
            run.progress
                .now(&format!("GPU: reads of {group} threads, {place}"));
            let time = lab.random_read(&memory, *bytes, (*pattern, group), run.args.rounds)?;
            let n = (bytes / 4).ilog2();
            let case = Case::new(
                Width::U32,
                Data::Constant,
                ResultKind::Value,
                Workload::Large,
                n,
            );
            cells.push(three_digits(time.median * 1e9));
            run.found(Record {
                section: Section::Reads,
                case,
                contender: format!("{words}, {place}"),
                setting: Setting {
                    group,
                    ..Setting::default()
                },
                queries: 1,
                threads: 0,
                time,
                cold_seconds: None,
                build_seconds: None,
                index_bytes: None,
                build_bytes: 0,
                wrong: 0,
            });
            run.progress.done();
        }
        table.row(group.to_string(), cells);
    }
    run.tables.push(table);
    Ok(())
}
