//! Lowest common ancestors by an Euler tour, as Polak et al. have them, `kernels/baselines/lca_tour.cu`, on a column in
//! the device's memory.

use std::ffi::c_void;

use cudarc::driver::sys::CUdeviceptr;
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::module::{Function, Module};
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;
use rmq_engine::cuda::rmq::index::KernelOutput;

use super::device::{DeviceColumn, Lab};
use super::edge_sort::EdgeSort;
use super::kernel::{KernelIndex, KernelUnderTest};
use super::lca::{CHUNK, TILE};
use super::paper::PaperKernel;
use super::tour::{Tour, TourIndex, TourTime};

const LCA_TOUR: Module = Module {
    name: "lca_tour",
    ptx: include_str!("../../../../kernels/baselines/ptx/lca_tour.ptx"),
};

/// The longest column: numbers of edges, two a node, have 31 bits.
pub const MAX_TOUR_ROWS: u64 = 1 << 30;

/// What only the build needs: arrays by position, and by edge.
struct Scratch {
    memory: DeviceMemory,
    /// The number of edges.
    edges: u32,
    parent: CUdeviceptr,
    first: CUdeviceptr,
    root: CUdeviceptr,
    from: CUdeviceptr,
    next: CUdeviceptr,
    successor: CUdeviceptr,
    words: [CUdeviceptr; 2],
    sorted: [CUdeviceptr; 2],
    sort: EdgeSort,
    /// Cuts of the list of edges, and for each sublist its first edge, its length and the one after it.
    splits: u32,
    sublists: DeviceMemory,
    /// Sums of tiles.
    sums: DeviceMemory,
}

impl Scratch {
    fn new(lab: &Lab, n: u32) -> Result<Self, EngineError> {
        let edges = 2 * (n - 1);
        let of_positions = u64::from(n).next_multiple_of(TILE) * 4;
        let of_edges = u64::from(edges).next_multiple_of(TILE) * 4;
        let memory = lab.allocate((TILE * 4 + 2 * of_positions + 7 * of_edges) as usize)?;
        let root = memory.address();
        let parent = root + TILE * 4;
        let edge = |number: u64| parent + 2 * of_positions + number * of_edges;
        let splits = splits(edges);
        Ok(Self {
            edges,
            parent,
            first: parent + of_positions,
            root,
            from: edge(0),
            next: edge(1),
            successor: edge(2),
            words: [edge(3), edge(4)],
            sorted: [edge(5), edge(6)],
            sort: EdgeSort::new(lab, edges)?,
            splits,
            sublists: lab.allocate(3 * (splits as usize + 1) * 4)?,
            sums: lab.sums_of_tiles(edges.into())?,
            memory,
        })
    }

    fn bytes(&self) -> usize {
        let others = self.sublists.bytes() + self.sums.bytes();
        self.memory.bytes() + self.sort.bytes() + others
    }
}

/// The number of cuts as the authors choose it, by measurements.
fn splits(edges: u32) -> u32 {
    if edges >= 100_000 {
        (f64::from(edges).sqrt() * 1.6) as u32
    } else {
        (edges / 100).max(1)
    }
}

impl Lab {
    /// Prepares the search for values by lowest common ancestors in a tree numbered by an Euler tour, whose build is
    /// timed as a whole, `rounds` times. There is memory for `queries` at once.
    ///
    /// # Errors
    /// Those of the driver; [`EngineError::Unsupported`] for more than [`MAX_TOUR_ROWS`] values.
    pub fn lca_tour(
        &self,
        column: &DeviceColumn,
        time: TourTime,
        queries: u32,
        rounds: u32,
    ) -> Result<KernelUnderTest, EngineError> {
        if column.rows > MAX_TOUR_ROWS {
            return Err(EngineError::Unsupported("a tour of more than 2^30 values"));
        }
        let key = if column.key_bytes == 4 { "u32" } else { "u64" };
        let n = column.rows as u32;
        let array = (column.rows + 1).next_multiple_of(TILE) * 4;
        let memory = self.allocate(array as usize * 6 + column.rows as usize * column.key_bytes)?;
        let at = |number: u64| memory.address() + number * array;
        let index = TourIndex {
            n,
            number: at(0),
            parent: at(1),
            level: at(2),
            inlabel: at(3),
            ascendant: at(4),
            head: at(5),
            values: at(6),
        };
        let vector = PaperKernel::Vector {
            chunk: CHUNK,
            heat_map: false,
        };
        let levels = self.levels(column, vector, false, CHUNK.into())?;
        let fill = self.levels_kernel(column, "value")?;
        let scratch = Scratch::new(self, n)?;
        let Scratch { parent, root, .. } = &scratch;
        let build = self.time(rounds, || {
            self.fill(&levels, fill)?;
            let arguments = [argument(&levels.index), argument(parent), argument(root)];
            // SAFETY: arguments are those of `tour_tree`; there is room for the parents of all positions.
            unsafe { self.enqueue(&format!("tour_tree_{key}"), n, arguments)? };
            self.number(&index, &scratch, (column.memory.address(), key))
        })?;
        let tour = Tour {
            index,
            time,
            nodes_of: self.tour("tour_nodes_of")?,
            values: self.tour(&format!("tour_values_{key}"))?,
            nodes: self.allocate(queries as usize * 8)?,
            found: self.allocate(queries as usize * 4)?,
        };
        Ok(KernelUnderTest {
            function: self.tour("tour_ancestors")?,
            index: KernelIndex::Tour(Box::new(tour)),
            memory,
            build_seconds: build.median,
            build_bytes: (levels.memory.bytes() + scratch.bytes()) as u64,
            output: KernelOutput::Value,
            wide_positions: false,
            threads: 1,
            combines_in_answers: false,
        })
    }

    fn tour(&self, name: &str) -> Result<Function, EngineError> {
        self.gpu.modules.function(LCA_TOUR, name)
    }

    /// Enqueues a kernel of `lca_tour.cu`.
    ///
    /// # Safety
    /// As [`rmq_engine::cuda::driver::stream::Stream::launch`].
    unsafe fn enqueue<const N: usize>(
        &self,
        name: &str,
        threads: u32,
        arguments: [*mut c_void; N],
    ) -> Result<(), EngineError> {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.stream).launch(self.tour(name)?, threads.into(), arguments) }
    }

    /// Enqueues what numbers a tree, given by the parents of positions, and fills its index.
    fn number(
        &self,
        index: &TourIndex,
        scratch: &Scratch,
        (column, key): (CUdeviceptr, &str),
    ) -> Result<(), EngineError> {
        let n = &index.n;
        let Scratch {
            edges,
            parent,
            root,
            ..
        } = scratch;
        let place = &self.places(index.n, scratch)?;
        let [down, depth] = &scratch.words;
        let sums = scratch.sums.address();
        let (index, column) = (argument(index), argument(&column));
        // SAFETY: arguments are those of the kernels; arrays have an entry for each position or edge, padded to tiles
        // where they are summed. On the stream, each kernel follows those whose results it reads.
        unsafe {
            let arguments = [
                argument(n),
                argument(place),
                argument(down),
                argument(depth),
            ];
            self.enqueue("tour_steps", *edges, arguments)?;
            self.scan(*down, (*edges).into(), sums)?;
            self.scan(*depth, (*edges).into(), sums)?;
            let (root, place, down) = (argument(root), argument(place), argument(down));
            let arguments = [index, root, place, down, argument(depth)];
            self.enqueue("tour_numbers", *n, arguments)?;
            let arguments = [index, column, argument(parent), root, place, down];
            self.enqueue(&format!("tour_nodes_{key}"), *n, arguments)?;
            self.scan(scratch.words[0], (*edges).into(), sums)?;
            self.enqueue("tour_ascendants", *n, [index, root, place, down])
        }
    }

    /// Enqueues the tour; returns where the place of each edge in it will be.
    fn places(&self, n: u32, scratch: &Scratch) -> Result<CUdeviceptr, EngineError> {
        let Scratch {
            edges,
            parent,
            first,
            root,
            from,
            next,
            successor,
            splits,
            ..
        } = scratch;
        let [place, sublist] = &scratch.sorted;
        if *edges == 0 {
            return Ok(*place);
        }
        let sublists = splits + 1;
        let heads = scratch.sublists.address();
        let lengths = heads + u64::from(sublists) * 4;
        let after = lengths + u64::from(sublists) * 4;
        let bytes = *edges as usize * 4;
        // SAFETY: as in `number`; the arrays of the sort are free after `tour_links`.
        unsafe {
            let arguments = [
                argument(&n),
                argument(parent),
                argument(root),
                argument(from),
                argument(&scratch.words[0]),
            ];
            self.enqueue("tour_edges", n, arguments)?;
            let bits = u32::BITS - (n - 1).leading_zeros();
            let by = (scratch.sort).run(self, bits, scratch.words, scratch.sorted)?;
            self.stream.memset(*next, 0xFF, bytes)?;
            let arguments = [
                argument(edges),
                argument(&scratch.words[by]),
                argument(&scratch.sorted[by]),
                argument(first),
                argument(next),
            ];
            self.enqueue("tour_links", *edges, arguments)?;
            let arguments = [
                argument(&n),
                argument(from),
                argument(first),
                argument(next),
                argument(root),
                argument(successor),
            ];
            self.enqueue("tour_successors", *edges, arguments)?;
            let arguments = [
                argument(edges),
                argument(splits),
                argument(first),
                argument(root),
                argument(successor),
                argument(&heads),
            ];
            self.enqueue("tour_split", *splits, arguments)?;
            let arguments = [
                argument(&sublists),
                argument(&heads),
                argument(successor),
                argument(place),
                argument(sublist),
                argument(&lengths),
                argument(&after),
            ];
            self.enqueue("tour_walk", sublists, arguments)?;
            let arguments = [argument(&sublists), argument(&after), argument(&lengths)];
            self.enqueue("tour_offsets", 1, arguments)?;
            let arguments = [
                argument(edges),
                argument(sublist),
                argument(&lengths),
                argument(place),
            ];
            self.enqueue("tour_places", *edges, arguments)?;
        }
        Ok(*place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sublists_have_a_hundred_edges_or_as_many_as_the_authors_measured() {
        assert_eq!(splits(2), 1);
        assert_eq!(splits(99_998), 999);
        assert_eq!(splits(1_000_000), 1600);
    }
}
