//! The systems: their triangles and levels, built on the device, and their search.

use std::ops::Range;
use std::time::Instant;

use ash::vk;
use rmq_bench::clock::{Timing, median};

use super::acceleration::{Building, PART_UNIT, Scene, SceneBuilder, TRIANGLE_BYTES};
use super::arguments::{MAX_LEVELS, MinimaArguments, SearchArguments, TrianglesArguments};
use super::device::{Times, Vulkan};
use super::error::VulkanError;
use super::layout::{Grid, MINIMUM_STEP, Planes, fraction};
use super::memory::{Buffer, Purpose};
use super::pipeline::{LEVELS, LEVELS_RAYS, MINIMA, Pipeline, RTXRMQ, RayPipeline, TRIANGLES};

/// Entries of a chunk of the levels are 2^5, as for CL on CUDA.
pub const LEVEL_SHIFT: u32 = 5;

/// Launch indices that work together.
pub const GROUP: u32 = 16;

/// The most triangles of a part of a scene: some devices have no room for more at once.
fn most_of_a_part(building: Building) -> u64 {
    match building {
        // 2^24 values with the minima of their blocks.
        Building::Updatable => (1 << 24) + (1 << 19),
        Building::Compacted => 1 << 22,
    }
}

/// A trace that takes this many seconds is timed as it is: what a round before it would gain is little beside that.
const LONG_TRACE: f64 = 0.1;

/// The most queries from which the time of all is estimated: enough to occupy a device.
const SAMPLE: u32 = 1 << 18;

/// The pipelines of all systems and of their builds.
pub struct Shaders<'v> {
    vulkan: &'v Vulkan,
    minima: Pipeline<'v>,
    triangles: Pipeline<'v>,
    rtxrmq: RayPipeline<'v>,
    levels: RayPipeline<'v>,
    levels_with_rays: RayPipeline<'v>,
}

/// A column in the device's memory.
pub struct RayColumn<'v> {
    vulkan: &'v Vulkan,
    shaders: &'v Shaders<'v>,
    values: Buffer<'v>,
    rows: u32,
}

/// Inclusive bounds of queries in the device's memory, and room for their answers.
pub struct RayQueries<'v> {
    left: Buffer<'v>,
    right: Buffer<'v>,
    answers: Buffer<'v>,
    count: u32,
}

/// A system with its index, ready to answer queries.
pub struct RaySearch<'v> {
    pipeline: &'v RayPipeline<'v>,
    arguments: SearchArguments,
    /// Whether launch indices combine minima in the memory of the answers, which must hold the greatest value before.
    combines_in_answers: bool,
    _minima: Buffer<'v>,
    _scene: Option<Scene<'v>>,
    pub build: BuildCosts,
}

/// What a build takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct BuildCosts {
    pub times: Times,
    /// Bytes that stay allocated, without the column.
    pub index_bytes: u64,
    /// Bytes that only the build needed.
    pub build_bytes: u64,
    /// Bytes of the acceleration structures before they were compacted, and after.
    pub compaction: (u64, u64),
    pub triangles: u64,
}

/// Levels of minima above an array, in one buffer.
struct Levels<'v> {
    buffer: Buffer<'v>,
    /// Where each level begins, in entries; level 0 is not here.
    start: [u32; MAX_LEVELS],
    top: u32,
    /// Entries of the highest level.
    entries: u32,
}

impl<'v> Shaders<'v> {
    /// Compiles all shaders.
    pub fn new(vulkan: &'v Vulkan) -> Result<Self, VulkanError> {
        Ok(Self {
            vulkan,
            minima: vulkan.compute_pipeline(MINIMA)?,
            triangles: vulkan.compute_pipeline(TRIANGLES)?,
            rtxrmq: vulkan.ray_pipeline(RTXRMQ, true)?,
            levels: vulkan.ray_pipeline(LEVELS, false)?,
            levels_with_rays: vulkan.ray_pipeline(LEVELS_RAYS, true)?,
        })
    }

    /// Copies a column to the device.
    ///
    /// # Errors
    /// [`VulkanError::Unsupported`] if it has more than 2^30 values.
    pub fn column(&self, values: &[u32]) -> Result<RayColumn<'_>, VulkanError> {
        if values.len() > 1 << 30 {
            let why = "numbers of triangles have 32 bits: a column has at most 2^30 values";
            return Err(VulkanError::Unsupported(why.to_owned()));
        }
        Ok(RayColumn {
            vulkan: self.vulkan,
            shaders: self,
            values: self.vulkan.upload(values)?,
            rows: values.len() as u32,
        })
    }
}

impl Vulkan {
    /// Copies the bounds of queries to the device.
    pub fn queries(&self, left: &[u32], right: &[u32]) -> Result<RayQueries<'_>, VulkanError> {
        let count = left.len().min(right.len());
        if count as u64 > self.limits.launch {
            let why = format!("the device launches no {count} queries at once");
            return Err(VulkanError::Unsupported(why));
        }
        Ok(RayQueries {
            left: self.upload(left)?,
            right: self.upload(right)?,
            answers: self.buffer(count as u64 * 4, Purpose::Array)?,
            count: count as u32,
        })
    }
}

impl<'v> RayColumn<'v> {
    /// Builds RTXRMQ with blocks of 2^`block_shift` values.
    ///
    /// # Errors
    /// [`VulkanError::Unsupported`] if the layout has no exact coordinates for such blocks.
    ///
    /// # Panics
    /// Where there is not a plane for each value.
    pub fn rtxrmq(
        &self,
        planes: &Planes,
        block_shift: u32,
        building: Building,
    ) -> Result<RaySearch<'v>, VulkanError> {
        assert_eq!(planes.bits.len(), self.rows as usize);
        let vulkan = self.vulkan;
        let grid = Grid::new(self.rows.into(), block_shift)?;
        let plane_of = vulkan.upload(&planes.bits)?;
        let measured = Measured::begin(vulkan);
        let (values, minima, mut times) = self.block_minima(&self.values, grid)?;
        drop(values);
        let (rest, minimum_planes, more) = self.block_minima(&plane_of, grid)?;
        drop(rest);
        times.add(more);
        let rows = u64::from(self.rows);
        let minima_from = rows.next_multiple_of(PART_UNIT);
        let blocks = Placed {
            planes: plane_of.address,
            entries: rows,
            number: 0,
            block_shift: grid.shift,
            first_cell: 1,
            side: grid.side,
            step: fraction(grid.shift),
        };
        let minima_of_blocks = Placed::minima(minimum_planes.address, grid.blocks, minima_from);
        let scene = self.scene(building, &[blocks, minima_of_blocks])?;
        drop(minimum_planes);
        let compaction = (scene.built_bytes, scene.compacted_bytes);
        let (scene, more) = scene.finish()?;
        times.add(more);
        // Planes are a part of what a build needs, as vertices are.
        let mut build = measured.end(times, compaction, rows + u64::from(grid.blocks));
        build.build_bytes += plane_of.bytes;
        Ok(RaySearch {
            pipeline: &self.shaders.rtxrmq,
            arguments: SearchArguments {
                values: self.values.address,
                minima: minima.address,
                scene: scene.address,
                minima_from: minima_from as u32,
                block_shift: grid.shift,
                side: grid.side,
                step: fraction(grid.shift),
                minimum_step: MINIMUM_STEP,
                end: planes.end,
                ..SearchArguments::default()
            },
            combines_in_answers: false,
            _minima: minima,
            _scene: Some(scene),
            build,
        })
    }

    /// Builds the levels of CL, up to one of at most `cutoff` entries, for a pipeline without rays.
    pub fn levels_alone(&self, cutoff: u32) -> Result<RaySearch<'v>, VulkanError> {
        let measured = Measured::begin(self.vulkan);
        let (levels, times) = self.levels(&self.values, cutoff)?;
        Ok(RaySearch {
            pipeline: &self.shaders.levels,
            arguments: self.level_arguments(&levels),
            combines_in_answers: true,
            build: measured.end(times, (0, 0), 0),
            _minima: levels.buffer,
            _scene: None,
        })
    }

    /// Builds the levels of CL, up to one of at most `cutoff` entries, each with a triangle.
    pub fn levels_with_rays(
        &self,
        planes: &Planes,
        cutoff: u32,
        building: Building,
    ) -> Result<RaySearch<'v>, VulkanError> {
        let vulkan = self.vulkan;
        let plane_of = vulkan.upload(&planes.bits)?;
        let measured = Measured::begin(vulkan);
        let (levels, mut times) = self.levels(&self.values, cutoff)?;
        // The planes of a level are those of its minima.
        let (planes_of_levels, more) = self.levels(&plane_of, cutoff)?;
        times.add(more);
        let planes_of_entries = if levels.top > 0 {
            let start = u64::from(levels.start[levels.top as usize]);
            planes_of_levels.buffer.address + start * 4
        } else {
            plane_of.address
        };
        let entries = Placed::minima(planes_of_entries, levels.entries, 0);
        let scene = self.scene(building, &[entries])?;
        drop(planes_of_levels);
        let compaction = (scene.built_bytes, scene.compacted_bytes);
        let (scene, more) = scene.finish()?;
        times.add(more);
        let mut build = measured.end(times, compaction, levels.entries.into());
        build.build_bytes += plane_of.bytes;
        let mut arguments = self.level_arguments(&levels);
        arguments.scene = scene.address;
        arguments.minimum_step = MINIMUM_STEP;
        arguments.end = planes.end;
        Ok(RaySearch {
            pipeline: &self.shaders.levels_with_rays,
            arguments,
            combines_in_answers: true,
            build,
            _minima: levels.buffer,
            _scene: Some(scene),
        })
    }

    fn level_arguments(&self, levels: &Levels<'_>) -> SearchArguments {
        SearchArguments {
            values: self.values.address,
            minima: levels.buffer.address,
            top: levels.top,
            level: levels.start,
            ..SearchArguments::default()
        }
    }

    /// Computes the levels of minima above an array of the column's length.
    fn levels(&self, from: &Buffer<'v>, cutoff: u32) -> Result<(Levels<'v>, Times), VulkanError> {
        let mut counts = vec![self.rows];
        let (mut start, mut end) = ([0; MAX_LEVELS], 0);
        while counts[counts.len() - 1] > cutoff.max(1) {
            if counts.len() == MAX_LEVELS {
                return Err(VulkanError::Unsupported("this many levels".to_owned()));
            }
            start[counts.len()] = end;
            let count = counts[counts.len() - 1].div_ceil(1 << LEVEL_SHIFT);
            end += count;
            counts.push(count);
        }
        let buffer = self.vulkan.buffer(u64::from(end) * 4, Purpose::Array)?;
        let address = |k: usize| buffer.address + u64::from(start[k]) * 4;
        let times = self.vulkan.run(|commands| {
            for k in 1..counts.len() {
                let arguments = MinimaArguments {
                    from: if k == 1 { from.address } else { address(k - 1) },
                    to: address(k),
                    entries: counts[k - 1],
                    shift: LEVEL_SHIFT,
                };
                self.vulkan
                    .dispatch(commands, &self.shaders.minima, &arguments, counts[k]);
                self.vulkan.barrier(commands);
            }
        })?;
        let levels = Levels {
            buffer,
            start,
            top: counts.len() as u32 - 1,
            entries: counts[counts.len() - 1],
        };
        Ok((levels, times))
    }

    /// Computes the minima of a grid's blocks, in steps of small chunks; returns the arrays in between, too.
    fn block_minima(
        &self,
        from: &Buffer<'v>,
        grid: Grid,
    ) -> Result<(Vec<Buffer<'v>>, Buffer<'v>, Times), VulkanError> {
        let mut steps = Vec::new();
        let (mut shift, mut entries) = (0, self.rows);
        while shift < grid.shift {
            let step = (grid.shift - shift).min(LEVEL_SHIFT);
            let above = entries.div_ceil(1 << step);
            steps.push((
                entries,
                step,
                self.vulkan.buffer(u64::from(above) * 4, Purpose::Array)?,
            ));
            (shift, entries) = (shift + step, above);
        }
        let times = self.vulkan.run(|commands| {
            let mut below = from.address;
            for (entries, step, to) in &steps {
                let arguments = MinimaArguments {
                    from: below,
                    to: to.address,
                    entries: *entries,
                    shift: *step,
                };
                let chunks = entries.div_ceil(1 << step);
                self.vulkan
                    .dispatch(commands, &self.shaders.minima, &arguments, chunks);
                self.vulkan.barrier(commands);
                below = to.address;
            }
        })?;
        let mut arrays: Vec<_> = steps.into_iter().map(|(_, _, array)| array).collect();
        let last = arrays.pop().ok_or_else(|| {
            VulkanError::Unsupported("blocks of one value have no minima".to_owned())
        })?;
        Ok((arrays, last, times))
    }

    /// Builds the parts of a scene: each array of entries in parts of its own, or, as published, all together.
    fn scene(&self, building: Building, all: &[Placed]) -> Result<SceneBuilder<'v>, VulkanError> {
        let together = match building {
            Building::Updatable => all.len(),
            Building::Compacted => 1,
        };
        let most = self.vulkan.limits.primitives / PART_UNIT * PART_UNIT;
        let part = most_of_a_part(building).min(most).max(PART_UNIT);
        let groups = || all.chunks(together);
        let longest = groups()
            .map(|group| {
                let all = triangles(group);
                all.end - all.start
            })
            .max();
        let mut scene = SceneBuilder::new(self.vulkan, building, longest.unwrap_or(0).min(part))?;
        for group in groups() {
            let Range { start, end } = triangles(group);
            for first in (start..end).step_by(part as usize) {
                let numbers = first..end.min(first + part);
                let count = (numbers.end - first) as u32;
                scene.add(first, count, |commands, corners| {
                    self.record_triangles(commands, group, numbers, corners);
                })?;
            }
        }
        Ok(scene)
    }

    /// Records what writes the corners of triangles. Those of numbers that no entry has, between two arrays, are points
    /// that no ray comes near.
    fn record_triangles(
        &self,
        commands: vk::CommandBuffer,
        group: &[Placed],
        numbers: Range<u64>,
        corners: &Buffer<'_>,
    ) {
        if group.len() > 1 {
            // SAFETY: the buffer is that long.
            unsafe {
                (self.vulkan.device).cmd_fill_buffer(
                    commands,
                    corners.handle,
                    0,
                    (numbers.end - numbers.start) * TRIANGLE_BYTES,
                    (-1.0_f32).to_bits(),
                );
            }
            self.vulkan.barrier(commands);
        }
        for placed in group {
            let first = numbers.start.max(placed.number);
            let end = numbers.end.min(placed.number + placed.entries);
            if first >= end {
                continue;
            }
            let count = (end - first) as u32;
            let arguments = TrianglesArguments {
                planes: placed.planes,
                vertices: corners.address + (first - numbers.start) * TRIANGLE_BYTES,
                first: (first - placed.number) as u32,
                count,
                block_shift: placed.block_shift,
                first_cell: placed.first_cell,
                side: placed.side,
                step: placed.step,
            };
            (self.vulkan).dispatch(commands, &self.shaders.triangles, &arguments, count);
        }
    }
}

/// The numbers of the triangles of arrays that follow each other.
fn triangles(group: &[Placed]) -> Range<u64> {
    let end = group.last().map_or(0, |last| last.number + last.entries);
    group.first().map_or(0, |first| first.number)..end
}

/// Entries with the place of their triangles.
struct Placed {
    /// The address of the first one's plane.
    planes: vk::DeviceAddress,
    entries: u64,
    /// The number of the first triangle.
    number: u64,
    block_shift: u32,
    /// Of the first block.
    first_cell: u32,
    side: u32,
    /// From an entry to the next.
    step: f32,
}

impl Placed {
    /// Minima, in the first cell.
    fn minima(planes: vk::DeviceAddress, entries: u32, number: u64) -> Self {
        Self {
            planes,
            entries: entries.into(),
            number,
            block_shift: 31,
            first_cell: 0,
            side: 1,
            step: MINIMUM_STEP,
        }
    }
}

/// The memory and the time of a build.
struct Measured<'v> {
    vulkan: &'v Vulkan,
    before: u64,
    start: Instant,
}

impl<'v> Measured<'v> {
    fn begin(vulkan: &'v Vulkan) -> Self {
        vulkan.take_peak();
        Self {
            vulkan,
            before: vulkan.allocated(),
            start: Instant::now(),
        }
    }

    /// Wall time is that of the whole build, allocations included.
    fn end(&self, times: Times, compaction: (u64, u64), triangles: u64) -> BuildCosts {
        let (stays, peak) = (self.vulkan.allocated(), self.vulkan.take_peak());
        BuildCosts {
            times: Times {
                device: times.device,
                wall: self.start.elapsed().as_secs_f64(),
            },
            index_bytes: stays - self.before,
            build_bytes: peak - stays,
            compaction,
            triangles,
        }
    }
}

impl RaySearch<'_> {
    /// Answers all queries and returns the time that it takes: that of `rounds` by the device's clock, after one that
    /// is not counted, and the median by the wall clock. Where the first takes long, it is the only one.
    pub fn answer(
        &self,
        vulkan: &Vulkan,
        queries: &RayQueries<'_>,
        rounds: u32,
    ) -> Result<(Timing, f64), VulkanError> {
        // Overwrites the answers of the system before, so that answers that are not written are noticed.
        fill(vulkan, queries, 0xA5A5_A5A5)?;
        let first = self.trace(vulkan, queries, queries.count)?;
        if first.device > LONG_TRACE {
            return Ok((Timing::from_seconds(&[first.device]), first.wall));
        }
        let times = (0..rounds.max(1)).map(|_| self.trace(vulkan, queries, queries.count));
        let times = times.collect::<Result<Vec<_>, _>>()?;
        let (device, wall): (Vec<_>, Vec<_>) =
            times.iter().map(|time| (time.device, time.wall)).unzip();
        Ok((Timing::from_seconds(&device), median(wall)))
    }

    /// Estimates the seconds that all queries take from the first of them.
    pub fn estimate(&self, vulkan: &Vulkan, queries: &RayQueries<'_>) -> Result<f64, VulkanError> {
        let sample = queries.count.clamp(1, SAMPLE);
        let time = self.trace(vulkan, queries, sample)?;
        Ok(time.device * f64::from(queries.count) / f64::from(sample))
    }

    /// Answers the first `count` queries.
    fn trace(
        &self,
        vulkan: &Vulkan,
        queries: &RayQueries<'_>,
        count: u32,
    ) -> Result<Times, VulkanError> {
        let arguments = SearchArguments {
            left: queries.left.address,
            right: queries.right.address,
            answers: queries.answers.address,
            queries: count,
            ..self.arguments
        };
        vulkan.run(|commands| {
            if self.combines_in_answers {
                record_fill(vulkan, commands, queries, u32::MAX);
                vulkan.barrier(commands);
            }
            let width = count.next_multiple_of(GROUP);
            vulkan.trace(commands, self.pipeline, &arguments, width);
        })
    }
}

impl RayQueries<'_> {
    /// Copies the answers to the host.
    pub fn answers(&self, vulkan: &Vulkan) -> Result<Vec<u32>, VulkanError> {
        vulkan.download(&self.answers, self.count as usize)
    }
}

fn fill(vulkan: &Vulkan, queries: &RayQueries<'_>, word: u32) -> Result<(), VulkanError> {
    vulkan.run(|commands| record_fill(vulkan, commands, queries, word))?;
    Ok(())
}

fn record_fill(vulkan: &Vulkan, commands: vk::CommandBuffer, queries: &RayQueries<'_>, word: u32) {
    let (answers, bytes) = (&queries.answers, u64::from(queries.count) * 4);
    // SAFETY: the answers are that long.
    unsafe { (vulkan.device).cmd_fill_buffer(commands, answers.handle, 0, bytes, word) };
}
