//! MIN and MAX of floats per group, in IEEE total order.
//!
//! DataFusion's MIN and MAX use total order without GROUP BY. With GROUP BY their result depends on the order of rows
//! if there are NaNs or zeros of both signs, and is never infinity. A range join finds extremes in total order, and
//! grouping its rows must preserve them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Float16Type, Float32Type, Float64Type, Int16Type,
    Int32Type, Int64Type,
};
use datafusion_common::{Result, exec_err, internal_err};
use datafusion_expr::function::AccumulatorArgs;
use datafusion_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};
use datafusion_functions_aggregate::min_max::{MaxAccumulator, MinAccumulator, max_udaf, min_udaf};

use rmq_engine::Extreme;

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// MIN or MAX of floats in total order, whether grouped or not.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct TotalOrderUdaf {
    extreme: Extreme,
    signature: Signature,
}

impl TotalOrderUdaf {
    /// The function for the smallest or the largest float.
    pub fn new(extreme: Extreme) -> Self {
        let floats = vec![DataType::Float16, DataType::Float32, DataType::Float64];
        Self {
            extreme,
            signature: Signature::uniform(1, floats, Volatility::Immutable),
        }
    }
}

impl AggregateUDFImpl for TotalOrderUdaf {
    fn name(&self) -> &'static str {
        match self.extreme {
            Extreme::Min => "total_min",
            Extreme::Max => "total_max",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [one] => Ok(one.clone()),
            _ => exec_err!("{} takes one argument", self.name()),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let data_type = args.return_field.data_type();
        Ok(match self.extreme {
            Extreme::Min => Box::new(MinAccumulator::try_new(data_type)?),
            Extreme::Max => Box::new(MaxAccumulator::try_new(data_type)?),
        })
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let float = args.return_field.data_type().clone();
        let integer = match float {
            DataType::Float16 => DataType::Int16,
            DataType::Float32 => DataType::Int32,
            _ => DataType::Int64,
        };
        let field = Arc::new(Field::new(args.return_field.name(), integer, true));
        let fields = [Arc::clone(&field)];
        let udaf: Arc<AggregateUDF> = match self.extreme {
            Extreme::Min => min_udaf(),
            Extreme::Max => max_udaf(),
        };
        let integers = udaf.create_groups_accumulator(AccumulatorArgs {
            return_field: field,
            expr_fields: &fields,
            ..args
        })?;
        Ok(Box::new(FloatsAsIntegers { float, integers }))
    }
}

/// Accumulates groups of floats as integers in the same order.
struct FloatsAsIntegers {
    float: DataType,
    integers: Box<dyn GroupsAccumulator>,
}

impl FloatsAsIntegers {
    fn as_integers(values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        values.iter().map(integers_of).collect()
    }

    fn as_floats(&self, values: &ArrayRef) -> Result<ArrayRef> {
        floats_of(values, &self.float)
    }
}

impl GroupsAccumulator for FloatsAsIntegers {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let values = Self::as_integers(values)?;
        let integers = &mut self.integers;
        integers.update_batch(&values, group_indices, opt_filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let values = self.integers.evaluate(emit_to)?;
        self.as_floats(&values)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let state = self.integers.state(emit_to)?;
        state.iter().map(|values| self.as_floats(values)).collect()
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        let values = Self::as_integers(values)?;
        let integers = &mut self.integers;
        integers.merge_batch(&values, group_indices, total_num_groups)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let values = Self::as_integers(values)?;
        let state = self.integers.convert_to_state(&values, opt_filter)?;
        state.iter().map(|values| self.as_floats(values)).collect()
    }

    fn size(&self) -> usize {
        self.integers.size()
    }
}

/// Maps floats to integers whose order is the floats' total order.
fn integers_of(floats: &ArrayRef) -> Result<ArrayRef> {
    Ok(match floats.data_type() {
        DataType::Float16 => {
            let floats = floats.as_primitive::<Float16Type>();
            let bits = floats.unary::<_, Int16Type>(|v| fold_16(v.to_bits().cast_signed()));
            Arc::new(bits)
        }
        DataType::Float32 => {
            let floats = floats.as_primitive::<Float32Type>();
            let bits = floats.unary::<_, Int32Type>(|v| fold_32(v.to_bits().cast_signed()));
            Arc::new(bits)
        }
        DataType::Float64 => {
            let floats = floats.as_primitive::<Float64Type>();
            let bits = floats.unary::<_, Int64Type>(|v| fold_64(v.to_bits().cast_signed()));
            Arc::new(bits)
        }
        other => return internal_err!("{other} is no float"),
    })
}

/// The inverse of [`integers_of`].
fn floats_of(integers: &ArrayRef, float: &DataType) -> Result<ArrayRef> {
    Ok(match float {
        DataType::Float16 => {
            let bits = integers.as_primitive::<Int16Type>();
            let floats =
                bits.unary::<_, Float16Type>(|v| Half::from_bits(fold_16(v).cast_unsigned()));
            Arc::new(floats)
        }
        DataType::Float32 => {
            let bits = integers.as_primitive::<Int32Type>();
            let floats =
                bits.unary::<_, Float32Type>(|v| f32::from_bits(fold_32(v).cast_unsigned()));
            Arc::new(floats)
        }
        DataType::Float64 => {
            let bits = integers.as_primitive::<Int64Type>();
            let floats =
                bits.unary::<_, Float64Type>(|v| f64::from_bits(fold_64(v).cast_unsigned()));
            Arc::new(floats)
        }
        other => return internal_err!("{other} is no float"),
    })
}

/// Flips all bits of a negative float except the sign; its own inverse.
fn fold_16(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & i16::MAX)
}

fn fold_32(bits: i32) -> i32 {
    bits ^ ((bits >> 31) & i32::MAX)
}

fn fold_64(bits: i64) -> i64 {
    bits ^ ((bits >> 63) & i64::MAX)
}
