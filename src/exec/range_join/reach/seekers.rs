//! What the rows of a probe side seek of a build side, and how much of it has been found.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, RecordBatch, UInt32Array};
use arrow::compute::{concat, concat_batches, max, min, take};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::{Result, exec_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::physical_expr::PhysicalExprRef;

use crate::exec::range_join::reach::sought::{Residual, Side, Sought};
use crate::exec::range_join::reach::whole_keys::{ends, numbers};
use crate::exec::range_join::row_join::RowJoin;
use crate::exec::range_join::spill::key_extent::comparable;
use datafusion_rmq_logical::logical_plan::range_join::RangeJoinSpec;
use rmq_arrow::common::array_bytes::{arrays_bytes, compact};
use rmq_arrow::common::ordered_type::value_type;
use rmq_arrow::common::row_number::row_number;
use rmq_arrow::range_agg::values::Values;
use rmq_arrow::sorted::groups::Groups;
use rmq_arrow::sorted::id_table::NO_GROUP;
use rmq_engine::Comparison;

/// The most pairs for which a further condition is evaluated, which takes some tenths of a second. Then all that is
/// left is read.
const MAX_PAIRS: usize = 1 << 22;

/// The most pairs that are evaluated at once.
const PAIRS: usize = 1 << 13;

/// Which rows a join seeks.
#[derive(Debug)]
pub(crate) struct Seeking {
    pub(super) spec: Arc<RangeJoinSpec<PhysicalExprRef>>,
    pub(super) sought: Sought,
    /// The type of range keys.
    pub(super) key_type: DataType,
}

/// What the rows of a probe side seek.
#[derive(Debug)]
pub(crate) struct Seekers {
    pub(super) seeking: Arc<Seeking>,
    groups: Groups,
    /// For each equality key its values in all groups, in parts.
    keys: Vec<Vec<ArrayRef>>,
    /// Those in each group whose rows have not been found, and the number of all.
    of_groups: Vec<Vec<Seeker>>,
    number: usize,
    /// A former number of these, and for each side the outermost bound that they had then.
    outermost: (usize, Vec<i128>),
    /// The least and the greatest value of each bound.
    ends: Vec<Option<(i128, i128)>>,
    /// The number of probe rows.
    rows: usize,
    /// The probe rows, if a further condition is evaluated.
    probe: Option<RecordBatch>,
    /// The number of pairs for which it has been evaluated.
    pairs: usize,
    memory: MemoryReservation,
}

/// Probe rows with the same equality keys, or one of them where each seeks rows of its own.
#[derive(Debug)]
struct Seeker {
    /// The first of these probe rows.
    row: u32,
    /// For each side the bound that is farthest from the other bounds' rows, the least one if rows below are sought,
    /// and how many rows are missing.
    missing: Vec<(i128, usize)>,
    /// How many rows have been found, on any side.
    found: usize,
}

/// The equality keys and bounds of some probe rows.
pub(super) struct SeekingRows {
    keys: Vec<ArrayRef>,
    bounds: Vec<Decimal128Array>,
}

impl Seeking {
    /// # Errors
    /// Those of the type of the range key.
    pub(crate) fn try_new(
        spec: &Arc<RangeJoinSpec<PhysicalExprRef>>,
        sought: Sought,
        build: &Schema,
    ) -> Result<Self> {
        Ok(Self {
            spec: Arc::clone(spec),
            sought,
            key_type: spec.key.data_type(build)?,
        })
    }

    /// Whether each probe row seeks rows of its own, that meet a further condition.
    pub(super) fn is_by_row(&self) -> bool {
        self.sought.residual.is_some()
    }

    /// Bounds of the keys between those from which rows are sought, with the windows beside which they are.
    pub(crate) fn around_bounds(&self) -> Vec<(Comparison, PhysicalExprRef)> {
        if self.spec.prevailing {
            return self.spec.bounds.clone();
        }
        let (_, bound) = &self.spec.bounds[self.sought.bound];
        let ends = [Comparison::AtLeast, Comparison::AtMost];
        ends.map(|end| (end, Arc::clone(bound))).to_vec()
    }

    /// The rows of a batch.
    ///
    /// # Errors
    /// Those of the bounds and equality keys: the join may meet none of them. If a point is NULL, to which no row is
    /// nearest.
    pub(super) fn rows(&self, batch: &RecordBatch) -> Result<SeekingRows> {
        let (spec, sought) = (&self.spec, &self.sought);
        let keys = spec.on.iter().map(|(key, _)| evaluated(key, batch));
        let bounds = spec.bounds.iter().map(|(_, bound)| {
            let values = evaluated(bound, batch)?;
            let (key, other) = (&self.key_type, values.data_type());
            if other != key {
                return exec_err!("a bound of type {other} is compared with keys of type {key}");
            }
            numbers(&values)
        });
        let bounds: Vec<_> = bounds.collect::<Result<_>>()?;
        let is_from_point = sought.is_beside_windows(spec) && !spec.prevailing;
        if is_from_point && bounds[sought.bound].null_count() > 0 {
            return exec_err!("no row is nearest to a point that is NULL");
        }
        Ok(SeekingRows {
            keys: keys.collect::<Result<_>>()?,
            bounds,
        })
    }
}

fn evaluated(expr: &PhysicalExprRef, batch: &RecordBatch) -> Result<ArrayRef> {
    comparable(&expr.evaluate(batch)?.into_array(batch.num_rows())?)
}

impl Seekers {
    /// Those of no rows yet, of a probe side of this schema.
    ///
    /// # Errors
    /// Those of the types of equality keys.
    pub(super) fn try_new(
        seeking: Arc<Seeking>,
        probe: &Schema,
        pool: &Arc<dyn MemoryPool>,
    ) -> Result<Self> {
        let types = seeking.spec.on.iter();
        let types = types.map(|(key, _)| Ok(value_type(&key.data_type(probe)?)));
        let types: Vec<_> = types.collect::<Result<_>>()?;
        Ok(Self {
            groups: Groups::try_new(&types)?,
            keys: vec![vec![]; types.len()],
            of_groups: vec![],
            number: 0,
            outermost: (usize::MAX, vec![]),
            ends: vec![None; seeking.spec.bounds.len()],
            rows: 0,
            probe: None,
            pairs: 0,
            memory: MemoryConsumer::new("RangeJoinSeekers").register(pool),
            seeking,
        })
    }

    /// Those of these rows, all of a probe side of this schema.
    ///
    /// # Errors
    /// Those of [`Seeking::rows`] and [`Self::add`].
    pub(crate) fn of_rows(
        seeking: &Arc<Seeking>,
        probe: &SchemaRef,
        batches: &[RecordBatch],
        pool: &Arc<dyn MemoryPool>,
    ) -> Result<Self> {
        let mut all = Self::try_new(Arc::clone(seeking), probe, pool)?;
        if let Some(residual) = &seeking.sought.residual {
            all.probe = Some(match &residual.probe {
                Some(limit) => {
                    let limits = batches.iter().map(|batch| evaluated(limit, batch));
                    let limits: Vec<_> = limits.collect::<Result<_>>()?;
                    RecordBatch::try_from_iter([("limit", concatenated(&limits)?)])?
                }
                None => concat_batches(probe, batches)?,
            });
        }
        for batch in batches {
            all.add(&seeking.rows(batch)?)?;
        }
        Ok(all)
    }

    /// Adds probe rows.
    ///
    /// # Errors
    /// If memory does not suffice. If the equality keys are of other types.
    pub(super) fn add(&mut self, rows: &SeekingRows) -> Result<()> {
        self.extend_ends(rows.bounds.iter().map(|b| min(b).zip(max(b))));
        let sought = &self.seeking.sought;
        let bounds = &rows.bounds[sought.bound];
        let mut groups = vec![0; bounds.len()];
        self.groups.add(&rows.keys, &mut groups)?;
        let mut new = vec![];
        for (row, (bound, group)) in bounds.iter().zip(groups).enumerate() {
            while group != NO_GROUP && group as usize >= self.of_groups.len() {
                self.of_groups.push(vec![]);
                new.push(row_number(row)?);
            }
            // NULL is in no group.
            let (Some(bound), Some(known)) = (bound, self.of_groups.get_mut(group as usize)) else {
                continue;
            };
            match known.first_mut() {
                Some(seeker) if !self.seeking.is_by_row() => {
                    for ((farthest, _), side) in seeker.missing.iter_mut().zip(&sought.sides) {
                        let farther = if side.is_below { i128::min } else { i128::max };
                        *farthest = farther(*farthest, bound);
                    }
                }
                _ => {
                    self.number += 1;
                    known.push(Seeker {
                        row: row_number(self.rows + row)?,
                        missing: vec![(bound, sought.rows); sought.sides.len()],
                        found: 0,
                    });
                }
            }
        }
        self.rows += bounds.len();
        let new = UInt32Array::from(new);
        if !new.is_empty() {
            for (parts, keys) in self.keys.iter_mut().zip(&rows.keys) {
                parts.push(compact(&take(keys, &new, None)?));
            }
        }
        self.memory.try_resize(self.bytes())
    }

    /// Adds those of further probe rows. Not where each of these seeks rows of its own.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(super) fn merge(&mut self, others: &Self) -> Result<()> {
        let sought = &others.seeking.sought;
        self.extend_ends(others.ends.iter().copied());
        let groups = others.of_groups.len();
        if groups == 0 {
            return Ok(());
        }
        let keys = others.keys.iter().map(|parts| concatenated(parts));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        for side in 0..sought.sides.len() {
            let farthest = others.of_groups.iter();
            let farthest = farthest.map(|group| Some(group.first()?.missing[side].0));
            let mut bounds = vec![Decimal128Array::new_null(groups); others.ends.len()];
            bounds[sought.bound] = farthest.collect();
            let keys = keys.clone();
            self.add(&SeekingRows { keys, bounds })?;
        }
        Ok(())
    }

    /// Takes the least and the greatest values of bounds of further rows into account.
    fn extend_ends(&mut self, further: impl Iterator<Item = Option<(i128, i128)>>) {
        for (ends, further) in self.ends.iter_mut().zip(further) {
            *ends = match (*ends, further) {
                (Some((least, greatest)), Some((low, high))) => {
                    Some((least.min(low), greatest.max(high)))
                }
                (known, further) => known.or(further),
            };
        }
    }

    /// Estimates the bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        let of_seeker =
            size_of::<Seeker>() + size_of::<(i128, usize)>() * self.seeking.sought.sides.len();
        let keys: usize = self.keys.iter().map(|parts| arrays_bytes(parts)).sum();
        self.groups.bytes()
            + keys
            + size_of::<Vec<Seeker>>() * self.of_groups.len()
            + of_seeker * self.number
    }

    /// The least and the greatest value of the bound from which rows are sought.
    pub(super) fn ends(&self) -> Option<(i128, i128)> {
        self.ends[self.seeking.sought.bound]
    }

    /// The least of the greatest values of the other bounds.
    pub(super) fn other_end(&self) -> Option<i128> {
        let others = self.ends.iter().enumerate();
        let others = others.filter(|(index, _)| *index != self.seeking.sought.bound);
        others.filter_map(|(_, ends)| Some((*ends)?.1)).min()
    }

    /// Whether rows are missing on this side.
    pub(super) fn miss_rows(&self, side: usize) -> bool {
        let mut seekers = self.of_groups.iter().flatten();
        seekers.any(|seeker| seeker.missing[side].1 > 0)
    }

    /// Whether so few rows have been found that some without a key may count.
    pub(super) fn may_be_without_key(&self) -> bool {
        let mut seekers = self.of_groups.iter().flatten();
        self.seeking.sought.or_without_key
            && seekers.any(|seeker| seeker.found < self.seeking.sought.rows)
    }

    /// The equality keys of those whose rows have not been found.
    ///
    /// # Errors
    /// Arrow's.
    pub(super) fn keys_left(&self) -> Result<Vec<ArrayRef>> {
        let groups = self.of_groups.iter().enumerate();
        let groups = groups.filter(|(_, seekers)| !seekers.is_empty());
        let groups = groups.map(|(group, _)| row_number(group));
        let groups = UInt32Array::from(groups.collect::<Result<Vec<_>>>()?);
        let keys = self.keys.iter().map(|parts| {
            if parts.is_empty() {
                return Ok(None);
            }
            Ok(Some(take(&concatenated(parts)?, &groups, None)?))
        });
        let keys: Option<Vec<_>> = keys.collect::<Result<_>>()?;
        // Without any group there is no key either.
        Ok(keys.unwrap_or_default())
    }

    /// Whether a further condition has been evaluated for [`MAX_PAIRS`], so that it is for no more.
    pub(super) fn have_given_up(&self) -> bool {
        self.pairs > MAX_PAIRS
    }

    /// Counts the rows of a slice that have been sought.
    ///
    /// # Errors
    /// Those of the keys.
    pub(super) fn find(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.number == 0 || self.have_given_up() {
            return Ok(());
        }
        let seeking = Arc::clone(&self.seeking);
        let range_keys = evaluated(&seeking.spec.key, batch)?;
        if !self.may_seek(&range_keys)? {
            return Ok(());
        }
        let range_keys = numbers(&range_keys)?;
        let keys = seeking.spec.on.iter().map(|(_, key)| evaluated(key, batch));
        let keys: Vec<_> = keys.collect::<Result<_>>()?;
        let groups = self.groups.find(&keys, batch.num_rows())?;
        let rows = range_keys.iter().zip(groups).enumerate();
        let rows = rows.filter_map(|(row, (range_key, group))| {
            let group = group as usize;
            let is_sought = self.of_groups.get(group).is_some_and(|s| !s.is_empty());
            Some((row, range_key.filter(|_| is_sought)?, group))
        });
        let rows: Vec<_> = rows.collect();
        match (&seeking.sought.residual, self.probe.clone()) {
            (Some(residual), Some(probe)) => {
                let found = self.find_pairs(rows, (residual, &probe, batch));
                if found.is_err() {
                    // The join need not evaluate the condition for these pairs.
                    self.pairs = usize::MAX;
                }
            }
            _ => {
                for (_, range_key, group) in rows {
                    for seeker in &mut self.of_groups[group] {
                        seeker.find(range_key, &seeking.sought.sides);
                    }
                    self.drop_done(group);
                }
            }
        }
        Ok(())
    }

    /// Whether a row with one of these keys may count. Most rows of a slice are within the bounds.
    fn may_seek(&mut self, range_keys: &ArrayRef) -> Result<bool> {
        // Elsewhere all rows of a group are counted, or each probe row seeks rows of its own.
        if self.seeking.sought.or_without_key || self.seeking.is_by_row() {
            return Ok(true);
        }
        let sides = &self.seeking.sought.sides;
        if self.number * 2 <= self.outermost.0 {
            let outermost = sides.iter().enumerate().map(|(number, side)| {
                let seekers = self.of_groups.iter().flatten();
                let bounds = seekers.map(|seeker| seeker.missing[number].0);
                let outermost = if side.is_below {
                    bounds.max()
                } else {
                    bounds.min()
                };
                outermost.unwrap_or_default()
            });
            self.outermost = (self.number, outermost.collect());
        }
        let Some((low, high)) = ends(range_keys)? else {
            return Ok(false);
        };
        let mut sides = sides.iter().zip(&self.outermost.1);
        Ok(sides.any(|(side, bound)| {
            if side.is_below {
                low <= *bound
            } else {
                high >= *bound
            }
        }))
    }

    /// Drops the seekers of a group whose rows have been found.
    fn drop_done(&mut self, group: usize) {
        let seekers = &mut self.of_groups[group];
        let before = seekers.len();
        seekers.retain(|seeker| !seeker.is_done());
        self.number -= before - seekers.len();
    }

    /// Counts the rows that meet the further condition with seekers of their group.
    fn find_pairs(
        &mut self,
        rows: Vec<(usize, i128, usize)>,
        (residual, probe, batch): (&Residual, &RecordBatch, &RecordBatch),
    ) -> Result<()> {
        let columns = residual.build.iter().map(|column| {
            let values = column.evaluate(batch)?.into_array(batch.num_rows())?;
            Ok(Arc::new(Values::by_position(values)))
        });
        let columns: Vec<_> = columns.collect::<Result<_>>()?;
        let seeking = Arc::clone(&self.seeking);
        let sides = &seeking.sought.sides;
        let (mut pairs, mut rows) = (vec![], rows.into_iter().peekable());
        let mut groups_with_found = BTreeSet::new();
        while let Some((row, range_key, group)) = rows.next() {
            let row = row_number(row)?;
            let seekers = self.of_groups[group].iter();
            let seekers = seekers.filter(|seeker| seeker.seeks(range_key, sides));
            pairs.extend(seekers.map(|seeker| (seeker.row, row, range_key, group)));
            if pairs.len() < PAIRS && rows.peek().is_some() {
                continue;
            }
            self.pairs = self.pairs.saturating_add(pairs.len());
            let of_probe: UInt32Array = pairs.iter().map(|(row, ..)| *row).collect();
            let of_build: UInt32Array = pairs.iter().map(|(_, row, ..)| *row).collect();
            let numbers = (&of_probe, &of_build);
            let met = RowJoin::meet_residual(&residual.condition, probe, &columns, numbers)?;
            for ((row, _, range_key, group), met) in pairs.drain(..).zip(met.values()) {
                let seekers = &mut self.of_groups[group];
                // They are in the order of their rows.
                if met && let Ok(at) = seekers.binary_search_by_key(&row, |seeker| seeker.row) {
                    seekers[at].find(range_key, sides);
                    groups_with_found.insert(group);
                }
            }
            if self.have_given_up() {
                break;
            }
        }
        for group in groups_with_found {
            self.drop_done(group);
        }
        Ok(())
    }
}

/// Parts of a column as one array.
fn concatenated(parts: &[ArrayRef]) -> Result<ArrayRef> {
    let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
    Ok(concat(&parts)?)
}

impl Seeker {
    /// Whether a row with this key counts for it.
    fn seeks(&self, range_key: i128, sides: &[Side]) -> bool {
        let mut missing = self.missing.iter().zip(sides);
        missing.any(|((bound, missing), side)| *missing > 0 && side.has(range_key, *bound))
    }

    /// Counts a row with this key.
    fn find(&mut self, range_key: i128, sides: &[Side]) {
        self.found += 1;
        for ((bound, missing), side) in self.missing.iter_mut().zip(sides) {
            if side.has(range_key, *bound) {
                *missing = missing.saturating_sub(1);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.missing.iter().all(|(_, missing)| *missing == 0)
    }
}
