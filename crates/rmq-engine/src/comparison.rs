//! Comparisons of a key with a bound.

/// How a key compares with a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub enum Comparison {
    /// `key > bound`
    Above,
    /// `key >= bound`
    AtLeast,
    /// `key < bound`
    Below,
    /// `key <= bound`
    AtMost,
}

impl Comparison {
    /// Returns whether the bound is the lower end of a range.
    #[must_use]
    pub fn is_lower(self) -> bool {
        matches!(self, Self::Above | Self::AtLeast)
    }

    /// Returns whether a key that equals the bound is excluded.
    #[must_use]
    pub fn is_strict(self) -> bool {
        matches!(self, Self::Above | Self::Below)
    }

    /// Returns whether the comparison of `key` with `bound` is true.
    pub fn holds<T: Ord + ?Sized>(self, key: &T, bound: &T) -> bool {
        match self {
            Self::Above => key > bound,
            Self::AtLeast => key >= bound,
            Self::Below => key < bound,
            Self::AtMost => key <= bound,
        }
    }

    /// Returns whether the range begins or ends before the keys that equal the bound; otherwise it does so after them.
    #[must_use]
    pub fn is_before_equal(self) -> bool {
        self.is_lower() != self.is_strict()
    }
}
