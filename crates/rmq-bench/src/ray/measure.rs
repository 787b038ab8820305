//! The section of ray-tracing pipelines. It needs no CUDA: answers are compared with those of the CPU engine.

use std::error::Error;
use std::sync::Arc;

use rmq_engine::cpu::CpuEngine;

use rmq_bench::clock::Timing;
use rmq_bench::data::{self, Data};
use rmq_bench::table::{Table, power_of_two, three_digits};
use rmq_bench::workload::Workload;

use crate::args::{Args, RayBuild, RayPlanes};
use crate::record::{Case, Record, Section, Setting};
use crate::run::Run;
use rmq_bench::batches::{self, BatchOptions, CPU_BATCH_SIZE, CollectedAnswers};
use rmq_bench::index;
use rmq_bench::kinds::{ResultKind, Width};

use super::acceleration::Building;
use super::device::Vulkan;
use super::error::VulkanError;
use super::layout::{Planes, rank_planes, value_planes};
use super::search::{BuildCosts, GROUP, LEVEL_SHIFT, RayColumn, RayQueries, RaySearch, Shaders};

/// The longest column, as a power of two.
const LONGEST: u32 = 26;

/// The most queries, as a power of two.
const MOST_QUERIES: u32 = 22;

/// The most seconds that all queries may take at once: some settings take that long where the driver traces rays in
/// software.
const LONGEST_TRACE: f64 = 2.0;

/// How far answers of the published layout may be off; devices compute the distance of a hit with such an error.
const TOLERANCE: f32 = 1.0 / (1 << 20) as f32;

/// A system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// RTXRMQ in blocks of 2^`shift` values.
    Rtxrmq {
        planes: RayPlanes,
        shift: u32,
        build: RayBuild,
    },
    /// CL as a ray-tracing pipeline that traces no rays.
    Levels,
    /// CL with a ray for the highest level, of at most 2^`entries` entries.
    LevelsWithRays { entries: u32, build: RayBuild },
}

impl System {
    /// The systems for a column of 2^n values.
    fn all(args: &Args, n: u32, data: Data) -> Vec<Self> {
        // Planes at values are for values from 0 to 1.
        let planes = args.ray_planes.iter();
        let planes = planes.filter(|planes| **planes == RayPlanes::Ranks || data == Data::Uniform);
        // Larger blocks than the column are like the column.
        let shifts: Vec<_> = args.ray_block.iter().filter(|shift| **shift <= n).collect();
        let mut systems = vec![Self::Levels];
        for build in args.ray_build.iter().copied() {
            let planes = planes.clone();
            systems.extend(planes.flat_map(|planes| {
                shifts.iter().map(move |shift| Self::Rtxrmq {
                    planes: *planes,
                    shift: **shift,
                    build,
                })
            }));
            let levels = args.ray_level.iter();
            systems.extend(levels.map(|entries| Self::LevelsWithRays {
                entries: *entries,
                build,
            }));
        }
        systems
    }

    fn name(self) -> String {
        let name = match self {
            Self::Rtxrmq {
                planes: RayPlanes::Values,
                ..
            } => "Vulkan, RTXRMQ",
            Self::Rtxrmq {
                planes: RayPlanes::Ranks,
                ..
            } => "Vulkan, RTXRMQ with planes at ranks",
            Self::Levels => "Vulkan, CL as a pipeline without rays",
            Self::LevelsWithRays { .. } => "Vulkan, CL with rays on the highest level",
        };
        match self.build() {
            Some(RayBuild::Updatable) => format!("{name}, updatable"),
            _ => name.to_owned(),
        }
    }

    /// How its acceleration structures are built, if it has any.
    fn build(self) -> Option<RayBuild> {
        match self {
            Self::Rtxrmq { build, .. } | Self::LevelsWithRays { build, .. } => Some(build),
            Self::Levels => None,
        }
    }

    /// The entries of the highest level, at most.
    fn cutoff(self, args: &Args) -> u32 {
        match self {
            Self::Levels => (args.cutoff[0].min(1 << 20) as u32).max(1 << LEVEL_SHIFT),
            Self::LevelsWithRays { entries, .. } => 1 << entries,
            Self::Rtxrmq { .. } => 0,
        }
    }

    fn setting(self, args: &Args) -> Setting {
        match self {
            Self::Rtxrmq { shift, .. } => Setting {
                chunk: 1 << shift,
                ..Setting::default()
            },
            Self::Levels | Self::LevelsWithRays { .. } => Setting {
                group: GROUP,
                chunk: 1 << LEVEL_SHIFT,
                cutoff: self.cutoff(args).into(),
            },
        }
    }
}

impl From<RayBuild> for Building {
    fn from(build: RayBuild) -> Self {
        match build {
            RayBuild::Updatable => Self::Updatable,
            RayBuild::Compacted => Self::Compacted,
        }
    }
}

/// What the report has beside the records.
struct Tables {
    costs: Table,
    precision: Table,
    left_out: Table,
}

/// The queries of a workload, and their answers by the CPU engine.
struct Asked<'v> {
    workload: Workload,
    queries: RayQueries<'v>,
    expected: Vec<u32>,
}

/// Measures all systems on all columns, if there is a device.
pub fn measure(run: &mut Run) {
    let vulkan = match Vulkan::open() {
        Ok(vulkan) => vulkan,
        Err(error) => {
            let skipped = format!("Vulkan: skipped: {error}");
            run.progress.say(&skipped);
            run.machine.push(skipped);
            return;
        }
    };
    let shaders = match Shaders::new(&vulkan) {
        Ok(shaders) => shaders,
        Err(error) => {
            let skipped = format!("Vulkan: skipped: {}: {error}", vulkan.describe());
            run.progress.say(&skipped);
            run.machine.push(skipped);
            return;
        }
    };
    run.machine.push(format!("Vulkan: {}", vulkan.describe()));
    if run.origin.gpu.is_empty() {
        run.origin.gpu.clone_from(&vulkan.name);
    }
    let sizes = run.host_sizes(Width::U32);
    let sizes: Vec<_> = sizes.into_iter().filter(|n| *n <= LONGEST).collect();
    for n in &sizes {
        let systems = run.args.data.iter();
        let systems = systems.map(|data| System::all(&run.args, *n, *data).len());
        run.progress.expect(systems.sum());
    }
    let costs = Table::new(
        format!("Ray-tracing pipelines on {}", vulkan.describe()),
        [
            "",
            "ns a query, device",
            "wall",
            "build, ms, device",
            "wall",
            "triangles",
            "built, MB",
            "compacted, MB",
        ]
        .map(str::to_owned),
    );
    let precision = Table::new(
        "RTXRMQ with planes at values, as published: answers that are not the minimum",
        ["", "answers", "of", "off by at most"].map(str::to_owned),
    );
    let mut tables = Tables {
        costs,
        precision,
        left_out: Table::new(
            format!(
                "Ray-tracing pipelines left out, as all queries would take more than {LONGEST_TRACE} s"
            ),
            ["", "estimated from a part of the queries, s"].map(str::to_owned),
        ),
    };
    for n in sizes {
        for data in run.args.data.clone() {
            let measured = on_column(run, (&vulkan, &shaders), n, data, &mut tables);
            if let Err(error) = measured {
                // What was measured before, and by other sections, is worth keeping.
                let what = format!(
                    "Vulkan: not measured: 2^{n} {} values: {error}",
                    data.name()
                );
                run.progress.say(&what);
                run.machine.push(what);
            }
        }
    }
    let tables = [tables.costs, tables.precision, tables.left_out].into_iter();
    run.tables.extend(tables.filter(|table| !table.is_empty()));
}

fn on_column(
    run: &mut Run,
    (vulkan, shaders): (&Vulkan, &Shaders<'_>),
    n: u32,
    data: Data,
    tables: &mut Tables,
) -> Result<(), Box<dyn Error>> {
    run.progress
        .now(&format!("Vulkan: a column of 2^{n} {} values", data.name()));
    let values = Arc::new(data::column::<u32>(data, 1 << n));
    let column = shaders.column(&values)?;
    let asked = ask(run, vulkan, n, &values)?;
    let ranks = rank_planes(&values)?;
    for system in System::all(&run.args, n, data) {
        let by_value = matches!(
            system,
            System::Rtxrmq {
                planes: RayPlanes::Values,
                ..
            }
        );
        run.progress.now(&format!("{}, n = 2^{n}", system.name()));
        let published;
        let planes = if by_value {
            published = value_planes(&values);
            &published
        } else {
            &ranks
        };
        let search = match prepare(&run.args, &column, system, planes) {
            Err(error @ (VulkanError::Memory { .. } | VulkanError::Unsupported(_))) => {
                run.progress.say(&format!(
                    "not measured: {}, n = 2^{n}: {error}",
                    system.name()
                ));
                run.progress.done();
                continue;
            }
            other => other?,
        };
        let mut first = None;
        for one in &asked {
            let case = Case::new(Width::U32, data, ResultKind::Value, one.workload, n);
            let estimate = search.estimate(vulkan, &one.queries)?;
            if estimate > LONGEST_TRACE {
                let name = format!("{}, {}, {}", system.name(), case.title(), power_of_two(n));
                let seconds = three_digits(estimate);
                (run.progress).say(&format!("left out: {name}: about {seconds} s"));
                tables.left_out.row(name, [seconds]);
                continue;
            }
            let (time, wall) = search.answer(vulkan, &one.queries, run.args.rounds)?;
            let answers = one.queries.answers(vulkan)?;
            let wrong = if by_value {
                let name = format!("{}, {} ranges", power_of_two(n), one.workload.name());
                compare_roughly(&name, &answers, &one.expected, &mut tables.precision)
            } else {
                let pairs = answers.iter().zip(&one.expected);
                pairs.filter(|(a, b)| a != b).count() as u64
            };
            first.get_or_insert((time.median, wall, answers.len()));
            let found = (time, answers.len() as u64, wrong);
            run.found(record(&run.args, case, system, &search, found));
        }
        if let Some(measured) = first {
            let name = format!("{}, {}, {}", system.name(), data.name(), power_of_two(n));
            let cells = cells(measured, &search.build);
            tables.costs.row(name, cells);
        }
        run.progress.done();
    }
    Ok(())
}

/// Makes the queries of all workloads, and answers them with the CPU engine.
fn ask<'v>(
    run: &Run,
    vulkan: &'v Vulkan,
    n: u32,
    values: &Arc<Vec<u32>>,
) -> Result<Vec<Asked<'v>>, Box<dyn Error>> {
    let options = BatchOptions {
        result: ResultKind::Value,
        threads: run.threads() as usize,
        batch_size: CPU_BATCH_SIZE,
    };
    let column = index::float_column(values);
    let built = index::build(&CpuEngine::new(), &column, options.result, run.threads(), 1)?;
    let count = 1 << run.args.batch.min(MOST_QUERIES);
    let mut asked = Vec::new();
    for workload in run.args.workload.clone() {
        let bounds = workload.bounds(1 << n, count);
        let expected = match batches::collect(&*built.index, bounds.all(), options)? {
            CollectedAnswers::Values(values) => values,
            CollectedAnswers::Positions(_) => unreachable!("values were asked for"),
        };
        let narrow = |bounds: &[i64]| -> Vec<u32> { bounds.iter().map(|b| *b as u32).collect() };
        asked.push(Asked {
            workload,
            queries: vulkan.queries(&narrow(&bounds.left), &narrow(&bounds.right))?,
            expected,
        });
    }
    Ok(asked)
}

fn prepare<'v>(
    args: &Args,
    column: &RayColumn<'v>,
    system: System,
    planes: &Planes,
) -> Result<RaySearch<'v>, VulkanError> {
    let cutoff = system.cutoff(args);
    match system {
        System::Rtxrmq { shift, build, .. } => column.rtxrmq(planes, shift, build.into()),
        System::Levels => column.levels_alone(cutoff),
        System::LevelsWithRays { build, .. } => {
            column.levels_with_rays(planes, cutoff, build.into())
        }
    }
}

/// Counts the answers that are off by more than the error of a hit, and adds a line about the others.
fn compare_roughly(case: &str, answers: &[u32], expected: &[u32], table: &mut Table) -> u64 {
    let (mut off, mut wrong, mut most) = (0_u64, 0, 0.0_f32);
    for (answer, expected) in answers.iter().zip(expected) {
        let difference = f32::from_bits(*answer) - f32::from_bits(*expected);
        if answer == expected {
            continue;
        }
        if (0.0..=TOLERANCE).contains(&difference) {
            off += 1;
            most = most.max(difference);
        } else {
            wrong += 1;
        }
    }
    let most = format!("{most:.1e}");
    table.row(case, [off.to_string(), answers.len().to_string(), most]);
    wrong
}

fn record(
    args: &Args,
    case: Case,
    system: System,
    search: &RaySearch<'_>,
    (time, queries, wrong): (Timing, u64, u64),
) -> Record {
    Record {
        section: Section::Rays,
        case,
        contender: system.name(),
        setting: system.setting(args),
        queries,
        threads: 0,
        time,
        cold_seconds: None,
        build_seconds: Some(search.build.times.device),
        index_bytes: Some(search.build.index_bytes),
        build_bytes: search.build.build_bytes,
        wrong,
    }
}

/// The line of a system in the table of costs.
fn cells((device, wall, queries): (f64, f64, usize), build: &BuildCosts) -> Vec<String> {
    let ns = |seconds: f64| three_digits(seconds * 1e9 / queries as f64);
    let ms = |seconds: f64| three_digits(seconds * 1e3);
    let mb = |bytes: u64| three_digits(bytes as f64 / 1e6);
    vec![
        ns(device),
        ns(wall),
        ms(build.times.device),
        ms(build.times.wall),
        build.triangles.to_string(),
        mb(build.compaction.0),
        mb(build.compaction.1),
    ]
}
