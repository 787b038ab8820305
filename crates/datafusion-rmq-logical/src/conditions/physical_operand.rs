//! Physical expressions as [`Operand`]s.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion_common::config::ConfigOptions;
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::{Operator, ScalarUDF};
use datafusion_physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, IsNotNullExpr, IsNullExpr, LikeExpr, Literal,
};
use datafusion_physical_expr::{PhysicalExprRef, ScalarFunctionExpr};

use crate::conditions::condition::{Compared, Operand, operator};
use crate::expr::key_bound::KeyBoundUdf;

impl Operand for PhysicalExprRef {
    type Schema = Schema;

    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.as_ref().data_type(schema)
    }

    fn may_be_null(&self, schema: &Schema) -> Result<bool> {
        self.as_ref().nullable(schema)
    }

    fn as_binary(&self) -> Option<(&Self, Operator, &Self)> {
        let binary = self.downcast_ref::<BinaryExpr>()?;
        Some((binary.left(), *binary.op(), binary.right()))
    }

    fn as_null_check(&self) -> Option<&Self> {
        Some(self.downcast_ref::<IsNullExpr>()?.arg())
    }

    fn as_like(&self) -> Option<(&Self, &Self)> {
        let like = self.downcast_ref::<LikeExpr>()?;
        let is_plain = !like.negated() && !like.case_insensitive();
        is_plain.then_some((like.expr(), like.pattern()))
    }

    fn as_constant(&self) -> Option<&ScalarValue> {
        Some(self.downcast_ref::<Literal>()?.value())
    }

    fn cast_operand(&self) -> Option<(&Self, &DataType)> {
        let cast = self.downcast_ref::<CastExpr>()?;
        Some((cast.expr(), cast.cast_type()))
    }

    fn as_call(&self) -> Option<(&ScalarUDF, &[Self])> {
        let call = self.downcast_ref::<ScalarFunctionExpr>()?;
        Some((call.fun(), call.args()))
    }

    fn is_column(&self) -> bool {
        self.is::<Column>()
    }

    fn infallible_operands(&self, _schema: &Schema) -> Result<Option<Vec<&Self>>> {
        let is_choice =
            self.is::<CaseExpr>() || self.is::<IsNullExpr>() || self.is::<IsNotNullExpr>();
        Ok(is_choice.then(|| self.children()))
    }

    fn comparing((key, comparison, bound): Compared<Self>) -> Self {
        Arc::new(BinaryExpr::new(key, operator(comparison), bound))
    }

    fn converted(
        self,
        conversion: KeyBoundUdf,
        is_open: Option<Self>,
        schema: &Schema,
    ) -> Result<Self> {
        let offset = conversion.shown_offset();
        let offset = offset.map(Self::constant);
        let is_open = is_open.map(|null| Arc::new(IsNullExpr::new(null)) as Self);
        let args = [self].into_iter().chain(is_open.or(offset)).collect();
        Self::call(Arc::new(ScalarUDF::from(conversion)), args, schema)
    }

    fn constant(value: ScalarValue) -> Self {
        Arc::new(Literal::new(value))
    }

    fn null_check(self) -> Self {
        Arc::new(IsNullExpr::new(self))
    }

    fn or_value(self, value: ScalarValue) -> Result<Self> {
        let is_known = Arc::new(IsNotNullExpr::new(Arc::clone(&self))) as Self;
        let otherwise = Some(Self::constant(value));
        Ok(Arc::new(CaseExpr::try_new(
            None,
            vec![(is_known, self)],
            otherwise,
        )?))
    }

    fn call(function: Arc<ScalarUDF>, arguments: Vec<Self>, schema: &Schema) -> Result<Self> {
        let options = Arc::new(ConfigOptions::default());
        let call = ScalarFunctionExpr::try_new(function, arguments, schema, options)?;
        Ok(Arc::new(call))
    }
}
