//! Logical expressions as operands of comparisons, which [`condition`](crate::conditions::condition) recognises.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::{BinaryExpr, Like};
use datafusion_expr::{
    Cast, Expr, ExprSchemable, Operator, ScalarUDF, TryCast, binary_expr, lit, when,
};

use crate::conditions::condition::{Compared, Operand, operator};
use crate::conditions::lossless_casts::is_number;
use crate::expr::key_bound::KeyBoundUdf;

impl Operand for Expr {
    type Schema = DFSchema;

    fn data_type(&self, schema: &DFSchema) -> Result<DataType> {
        self.get_type(schema)
    }

    fn may_be_null(&self, schema: &DFSchema) -> Result<bool> {
        self.nullable(schema)
    }

    fn as_binary(&self) -> Option<(&Self, Operator, &Self)> {
        match self {
            Self::BinaryExpr(BinaryExpr { left, op, right }) => Some((left, *op, right)),
            _ => None,
        }
    }

    fn as_null_check(&self) -> Option<&Self> {
        match self {
            Self::IsNull(operand) => Some(operand),
            _ => None,
        }
    }

    fn as_like(&self) -> Option<(&Self, &Self)> {
        match self {
            Self::Like(Like {
                negated: false,
                case_insensitive: false,
                escape_char: None | Some('\\'),
                expr,
                pattern,
            }) => Some((expr, pattern)),
            _ => None,
        }
    }

    fn as_constant(&self) -> Option<&ScalarValue> {
        match self {
            Self::Literal(value, _) => Some(value),
            _ => None,
        }
    }

    fn cast_operand(&self) -> Option<(&Self, &DataType)> {
        match self {
            Self::Cast(Cast { expr, field }) => Some((expr, field.data_type())),
            _ => None,
        }
    }

    fn as_call(&self) -> Option<(&ScalarUDF, &[Self])> {
        match self {
            Self::ScalarFunction(call) => Some((&call.func, &call.args)),
            _ => None,
        }
    }

    fn is_column(&self) -> bool {
        matches!(self, Self::Column(_))
    }

    fn infallible_operands(&self, schema: &DFSchema) -> Result<Option<Vec<&Self>>> {
        let is_constant = |e: &Self| matches!(e, Self::Literal(..));
        Ok(match self {
            Self::OuterReferenceColumn(..) => Some(vec![]),
            Self::Alias(alias) => Some(vec![&alias.expr]),
            Self::Not(e)
            | Self::IsNull(e)
            | Self::IsNotNull(e)
            | Self::IsTrue(e)
            | Self::IsFalse(e)
            | Self::IsUnknown(e)
            | Self::IsNotTrue(e)
            | Self::IsNotFalse(e)
            | Self::IsNotUnknown(e)
            | Self::TryCast(TryCast { expr: e, .. }) => Some(vec![e]),
            // Integers wrap around.
            Self::Negative(e) => is_number(&e.get_type(schema)?).then(|| vec![e.as_ref()]),
            Self::Between(between) => Some(vec![&between.expr, &between.low, &between.high]),
            Self::InList(list) => list.list.iter().all(is_constant).then(|| vec![&*list.expr]),
            Self::Like(like) => is_constant(&like.pattern).then(|| vec![&*like.expr]),
            Self::Case(case) => {
                let branches = case.when_then_expr.iter();
                let branches = branches.flat_map(|(when, then)| [when, then]);
                let parts = case.expr.iter().chain(branches).chain(&case.else_expr);
                Some(parts.map(AsRef::as_ref).collect())
            }
            _ => None,
        })
    }

    fn comparing((key, comparison, bound): Compared<Self>) -> Self {
        binary_expr(key, operator(comparison), bound)
    }

    fn converted(
        self,
        conversion: KeyBoundUdf,
        is_open: Option<Self>,
        _schema: &DFSchema,
    ) -> Result<Self> {
        let offset = conversion.shown_offset().map(lit);
        let shown = is_open.map(Self::is_null).or(offset);
        let args = [self].into_iter().chain(shown).collect();
        Ok(ScalarUDF::from(conversion).call(args))
    }

    fn constant(value: ScalarValue) -> Self {
        lit(value)
    }

    fn null_check(self) -> Self {
        self.is_null()
    }

    fn or_value(self, value: ScalarValue) -> Result<Self> {
        when(self.clone().is_not_null(), self).otherwise(lit(value))
    }

    fn call(function: Arc<ScalarUDF>, arguments: Vec<Self>, _schema: &DFSchema) -> Result<Self> {
        Ok(function.call(arguments))
    }
}
