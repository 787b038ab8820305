//! How many queries were asked, and how they ended.

use std::collections::BTreeMap;
use std::fmt;

/// How often each shape was asked and answered.
#[derive(Debug, Default)]
pub struct Tally {
    pub shapes: BTreeMap<&'static str, [usize; 2]>,
    pub refused: BTreeMap<&'static str, usize>,
    /// Wrong answers that `DataFusion` alone gives, too.
    pub shared: BTreeMap<String, usize>,
    pub asked: usize,
    pub answered: usize,
    pub range_joins: usize,
    pub failures: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            answered,
            range_joins,
            failures,
            ..
        } = self;
        let shared: usize = self.shared.values().sum();
        let refused: usize = self.refused.values().sum();
        writeln!(
            f,
            "random queries: {asked} asked, {answered} answered, {range_joins} with a range join"
        )?;
        for (shape, [asked, answered]) in &self.shapes {
            writeln!(f, "  {asked:6} asked, {answered:6} answered: {shape}")?;
        }
        writeln!(f, "{refused} refused:")?;
        for (limit, count) in &self.refused {
            writeln!(f, "  {count:6} {limit}")?;
        }
        writeln!(f, "{shared} as wrong without the extension:")?;
        for (gist, count) in &self.shared {
            writeln!(f, "  {count:6} {gist}")?;
        }
        write!(f, "{failures} failures")
    }
}
