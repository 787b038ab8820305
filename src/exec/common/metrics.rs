//! Builders of metrics, so that all operators give theirs the same types and categories.

use datafusion::physical_plan::metrics::{
    ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, MetricType,
};

/// A metric for high-level insight, which `datafusion.explain.analyze_level = 'summary'` keeps.
pub(crate) fn summary(metrics: &ExecutionPlanMetricsSet) -> MetricBuilder<'_> {
    MetricBuilder::new(metrics).with_type(MetricType::Summary)
}

/// A metric that counts rows.
pub(crate) fn rows(builder: MetricBuilder<'_>) -> MetricBuilder<'_> {
    builder.with_category(MetricCategory::Rows)
}

/// A metric that measures bytes.
pub(crate) fn bytes(builder: MetricBuilder<'_>) -> MetricBuilder<'_> {
    builder.with_category(MetricCategory::Bytes)
}
