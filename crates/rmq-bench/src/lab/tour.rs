//! A tree that an Euler tour numbers, as the kernels of `kernels/baselines/lca_tour.cu` get it, and searches in it.

use cudarc::driver::sys::CUdeviceptr;
use rmq_engine::EngineError;
use rmq_engine::cuda::driver::module::Function;
use rmq_engine::cuda::driver::stream::argument;
use rmq_engine::cuda::memory::device_memory::DeviceMemory;

use super::device::{DeviceAnswers, DeviceBounds, Lab};

/// Mirrors `TourIndex` in `kernels/baselines/lca_tour.cu`, which documents the fields. Passed to kernels by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TourIndex {
    pub n: u32,
    pub number: CUdeviceptr,
    pub parent: CUdeviceptr,
    pub level: CUdeviceptr,
    pub inlabel: CUdeviceptr,
    pub ascendant: CUdeviceptr,
    pub head: CUdeviceptr,
    pub values: CUdeviceptr,
}

/// What is timed of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TourTime {
    /// The search, from nodes to a node, as the authors' program times itself.
    Search,
    /// The whole trip, from positions to a value.
    WholeTrip,
}

/// A numbered tree with the kernels around its search, and memory for what they hand on.
#[derive(Debug)]
pub struct Tour {
    pub index: TourIndex,
    pub time: TourTime,
    pub nodes_of: Function,
    pub values: Function,
    /// Two nodes for each query.
    pub nodes: DeviceMemory,
    /// The node that each query finds.
    pub found: DeviceMemory,
}

impl Lab {
    /// Enqueues the mapping of the first `count` ranges to pairs of nodes.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If there is memory for fewer.
    pub fn find_nodes(
        &self,
        tour: &Tour,
        bounds: &DeviceBounds,
        count: u32,
    ) -> Result<(), EngineError> {
        assert!(count <= bounds.count && tour.nodes.bytes() >= count as usize * 8);
        let (left, right) = (bounds.left.address(), bounds.right.address());
        let nodes = tour.nodes.address();
        let arguments = [
            argument(&tour.index),
            argument(&count),
            argument(&left),
            argument(&right),
            argument(&nodes),
        ];
        // SAFETY: arguments are those of `tour_nodes_of`; lengths were checked.
        unsafe { (self.stream).launch(tour.nodes_of, count.into(), arguments) }
    }

    /// Enqueues the search from the first `count` pairs of nodes to their lowest common ancestors.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If there is memory for fewer.
    pub fn find_ancestors(
        &self,
        tour: &Tour,
        search: Function,
        count: u32,
    ) -> Result<(), EngineError> {
        assert!(tour.found.bytes() >= count as usize * 4);
        let (nodes, found) = (tour.nodes.address(), tour.found.address());
        let arguments = [
            argument(&tour.index),
            argument(&count),
            argument(&nodes),
            argument(&found),
        ];
        // SAFETY: arguments are those of `tour_ancestors`; lengths were checked.
        unsafe { (self.stream).launch(search, count.into(), arguments) }
    }

    /// Enqueues the gathering of the values at the first `count` nodes that were found.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If there is memory for fewer answers.
    pub fn take_values(
        &self,
        tour: &Tour,
        answers: &DeviceAnswers,
        count: u32,
    ) -> Result<(), EngineError> {
        assert!(answers.values.bytes() >= count as usize * 8);
        let (found, values) = (tour.found.address(), answers.values.address());
        let arguments = [
            argument(&tour.index),
            argument(&count),
            argument(&found),
            argument(&values),
        ];
        // SAFETY: arguments are those of `tour_values`; lengths were checked.
        unsafe { (self.stream).launch(tour.values, count.into(), arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tour_index_matches_the_struct_of_the_kernels() {
        assert_eq!(std::mem::offset_of!(TourIndex, values), 7 * 8);
        assert_eq!(size_of::<TourIndex>(), 8 * 8);
    }
}
