//! Names like one that is not known.

use datafusion_common::utils::datafusion_strsim::normalized_levenshtein;

/// Names are alike from this on, of 1 for equal ones; DataFusion uses the same bound for columns.
const ALIKE: f64 = 0.5;

/// The most names that are suggested.
const MOST: usize = 3;

/// The known names, each perhaps with a qualifier, that are like this one, as a question; empty if there are none.
pub fn did_you_mean(name: &str, known: impl IntoIterator<Item = String>) -> String {
    let known = known.into_iter().map(|known| {
        let last = known.rsplit('.').next().unwrap_or(&known);
        (alike(&known, name).max(alike(last, name)), known)
    });
    let mut similar: Vec<(f64, String)> =
        known.filter(|(likeness, _)| *likeness >= ALIKE).collect();
    similar.sort_by(|(a, x), (b, y)| b.total_cmp(a).then_with(|| x.cmp(y)));
    similar.truncate(MOST);
    let names: Vec<String> = similar
        .iter()
        .map(|(_, name)| format!("'{name}'"))
        .collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(". Did you mean {}?", names.join(" or "))
    }
}

fn alike(known: &str, name: &str) -> f64 {
    let (known, name) = (known.to_lowercase(), name.to_lowercase());
    // As where a plural is a singular.
    let is_part = name.len() >= 3
        && known.len() >= 3
        && (known.starts_with(&name) || name.starts_with(&known));
    if is_part {
        1.0
    } else {
        normalized_levenshtein(&known, &name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_names_come_first_and_one_edit_of_a_short_name_is_similar() {
        let known = ["q", "trades", "s.quotes", "rmq.range_joins", "rmq.rewrite"];
        let asked = |name: &str| did_you_mean(name, known.map(str::to_string));
        assert_eq!(asked("trads"), ". Did you mean 'trades'?");
        assert_eq!(asked("qq"), ". Did you mean 'q'?");
        assert_eq!(asked("quote"), ". Did you mean 's.quotes'?");
        assert_eq!(asked("rang_joins"), ". Did you mean 'rmq.range_joins'?");
        assert_eq!(asked("elephant"), "");
    }
}
