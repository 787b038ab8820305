//! Hints of key search: where the searches of a stream of batches ended.

/// Where the searches of one stream ended, for each of its bounds: searches of the next batch begin there. Empty at
/// first.
#[derive(Debug, Default)]
pub struct SearchHints(Vec<BoundHints>);

impl SearchHints {
    /// Returns the hints of the bound with this number.
    pub fn of_bound(&mut self, bound: usize) -> &mut BoundHints {
        if self.0.len() <= bound {
            self.0.resize_with(bound + 1, BoundHints::default);
        }
        &mut self.0[bound]
    }
}

/// The hints of one bound. Empty at first.
#[derive(Debug, Default)]
pub struct BoundHints(Vec<GroupHint>);

impl BoundHints {
    /// Returns one hint per group, without a position if their number differs from before.
    pub(crate) fn of_groups(&mut self, groups: usize) -> &mut [GroupHint] {
        if self.0.len() != groups {
            self.0 = vec![GroupHint::NONE; groups];
        }
        &mut self.0
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where the last search in a group of keys ended. The next one begins there, which is near where bounds ascend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupHint {
    pub(crate) position: u32,
    /// Estimated positions per unit of key distance; NaN if not known yet.
    pub(crate) slope: f32,
}

impl GroupHint {
    const NONE: Self = Self {
        position: 0,
        slope: f32::NAN,
    };
}
