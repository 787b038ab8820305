//! Methods that nodes have in common.

/// The methods of a node that tell its name, its inputs, which are the fields listed, and the field `schema`.
macro_rules! node_methods {
    ($name:literal, [$($input:ident),+]) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn inputs(&self) -> Vec<&datafusion_expr::LogicalPlan> {
            vec![$(&self.$input),+]
        }

        fn schema(&self) -> &datafusion_common::DFSchemaRef {
            &self.schema
        }
    };
}

pub(crate) use node_methods;
