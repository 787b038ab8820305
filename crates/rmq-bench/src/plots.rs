//! Plots of lines and heat maps, as SVG and as PNG, whose text needs no font of the machine's.

use std::error::Error;
use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

/// Points of an SVG; a PNG has twice as many pixels each way.
const WIDTH: u32 = 900;
const HEIGHT: u32 = 440;

/// What stands at the right of lines for their names.
const LEGEND: u32 = 220;

/// Pixels of a PNG for each point.
const PNG_SCALE: u32 = 2;

/// A PNG is drawn so many times larger and then shrunk, which smooths its edges.
const OVERSAMPLED: u32 = 2;

const FONT: &[u8] = include_bytes!("font/DejaVuSans.ttf");

/// In SVG, whoever shows it chooses which font that is.
const FAMILY: &str = "sans-serif";

const INK: RGBColor = RGBColor(40, 40, 44);
const FAINT: RGBColor = RGBColor(228, 228, 232);

/// Okabe and Ito's colours, which all eyes can tell apart, and one more.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 60, 30),
];

/// Of marks to compare with.
const GREY: RGBColor = RGBColor(90, 90, 90);

type Outcome = Result<(), Box<dyn Error>>;
type Area<'a, B> = DrawingArea<B, Shift>;

/// What can be drawn.
pub enum Plot {
    Lines(Lines),
    Heat(Heat),
}

/// Lines over powers of two.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_field_names, reason = "lines are what it is of")]
pub struct Lines {
    pub title: String,
    pub x: String,
    pub y: String,
    /// Whether y grows by factors; else it begins at 0.
    pub log: bool,
    /// How numbers on the x axis are written: `2^x`, or what 2^x is.
    pub plain_x: bool,
    pub lines: Vec<Line>,
}

/// A line of a plot.
#[derive(Debug, Clone)]
pub struct Line {
    pub name: String,
    /// (log2 x, y), by x.
    pub points: Vec<(u32, f64)>,
    /// Whether it is a mark to compare with, not a contender.
    pub dashed: bool,
}

/// Numbers over two parameters.
#[derive(Debug, Clone, Default)]
pub struct Heat {
    pub title: String,
    pub x: String,
    pub y: String,
    pub columns: Vec<u32>,
    pub rows: Vec<u32>,
    /// (column, row, number), smaller is better.
    pub cells: Vec<(usize, usize, f64)>,
}

/// Makes text possible. Called once, before anything is drawn.
pub fn prepare() -> Outcome {
    let styles = [FontStyle::Normal, FontStyle::Bold];
    for style in styles {
        register_font(FAMILY, style, FONT).map_err(|_| "the embedded font is not one")?;
    }
    Ok(())
}

/// Writes a plot as `NAME.svg` and `NAME.png`.
pub fn write(plot: &Plot, folder: &Path, name: &str) -> Outcome {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        draw(plot, &area, 1)?;
        area.present()?;
    }
    fs::write(folder.join(format!("{name}.svg")), svg)?;

    let scale = PNG_SCALE * OVERSAMPLED;
    let (width, height) = (WIDTH * scale, HEIGHT * scale);
    let mut pixels = vec![0; (width * height * 3) as usize];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
        draw(plot, &area, scale)?;
        area.present()?;
    }
    let file = fs::File::create(folder.join(format!("{name}.png")))?;
    let (small_width, small_height) = (width / OVERSAMPLED, height / OVERSAMPLED);
    let mut encoder = png::Encoder::new(std::io::BufWriter::new(file), small_width, small_height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&shrunk(&pixels, width as usize, OVERSAMPLED as usize))?;
    Ok(())
}

/// Every pixel the mean of a square of `by` times `by`.
fn shrunk(pixels: &[u8], width: usize, by: usize) -> Vec<u8> {
    let mut small = Vec::with_capacity(pixels.len() / (by * by));
    for rows in pixels.chunks_exact(width * 3 * by) {
        for column in 0..width / by {
            for channel in 0..3 {
                let square = (0..by * by).map(|at| {
                    let (x, y) = (column * by + at % by, at / by);
                    usize::from(rows[(y * width + x) * 3 + channel])
                });
                small.push((square.sum::<usize>() / (by * by)) as u8);
            }
        }
    }
    small
}

fn draw<B: DrawingBackend>(plot: &Plot, area: &Area<B>, scale: u32) -> Outcome
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    match plot {
        Plot::Lines(lines) => draw_lines(lines, area, scale),
        Plot::Heat(heat) => draw_heat(heat, area, scale),
    }
}

fn text(size: u32, scale: u32) -> TextStyle<'static> {
    (FAMILY, size * scale).into_font().color(&INK)
}

fn draw_lines<B: DrawingBackend>(plot: &Lines, area: &Area<B>, scale: u32) -> Outcome
where
    B::ErrorType: 'static,
{
    let points = || plot.lines.iter().flat_map(|line| &line.points);
    let (mut first, mut last) = (u32::MAX, 0);
    let (mut low, mut high) = (f64::MAX, 0.0_f64);
    for (x, y) in points() {
        (first, last) = (first.min(*x), last.max(*x));
        (low, high) = (low.min(*y), high.max(*y));
    }
    if first > last {
        return Ok(());
    }
    // In logarithms where these are asked for: one axis serves both.
    let up = |y: f64| if plot.log { y.max(1e-12).log10() } else { y };
    let (bottom, top) = if plot.log {
        (up(low) - 0.06, up(high) + 0.06)
    } else {
        (0.0, high * 1.08)
    };
    let x_range = f64::from(first) - 0.15..f64::from(last.max(first + 1)) + 0.15;
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(14 * scale)
        .margin_right(LEGEND * scale)
        .caption(&plot.title, text(16, scale))
        .x_label_area_size(42 * scale)
        .y_label_area_size(62 * scale);
    let mut chart = builder.build_cartesian_2d(x_range, bottom..top)?;

    let y_ticks = if plot.log {
        log_ticks(low, high)
    } else {
        even_ticks(high)
    };
    let x_step = (last - first) / 12 + 1;
    let x_ticks = (first..=last).step_by(x_step as usize);
    // The grid and labels by hand: the crate's own ticks know no powers.
    let plotting = chart.plotting_area();
    let (left, right) = (
        f64::from(first) - 0.15,
        f64::from(last.max(first + 1)) + 0.15,
    );
    for y in &y_ticks {
        plotting.draw(&PathElement::new(
            vec![(left, up(*y)), (right, up(*y))],
            FAINT.stroke_width(scale),
        ))?;
        let (_, at) = plotting.map_coordinate(&(left, up(*y)));
        let start = plotting.get_pixel_range().0.start;
        let style = text(12, scale).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(
            number(*y),
            (start - 7 * scale as i32, at),
            style,
        ))?;
    }
    let bottom_edge = plotting.get_pixel_range().1.end;
    for x in x_ticks {
        plotting.draw(&PathElement::new(
            vec![(f64::from(x), bottom), (f64::from(x), top)],
            FAINT.stroke_width(scale),
        ))?;
        let (at, _) = plotting.map_coordinate(&(f64::from(x), bottom));
        let style = text(12, scale).pos(Pos::new(HPos::Center, VPos::Top));
        let label = if plot.plain_x {
            (1_u64 << x).to_string()
        } else {
            power(x)
        };
        area.draw(&Text::new(
            label,
            (at, bottom_edge + 6 * scale as i32),
            style,
        ))?;
    }
    axis_names(area, &chart, &plot.x, &plot.y, scale)?;

    for (i, line) in plot.lines.iter().enumerate() {
        let color = line_color(i, line);
        let style = color.stroke_width(2 * scale);
        let path: Vec<_> = line
            .points
            .iter()
            .map(|(x, y)| (f64::from(*x), up(*y)))
            .collect();
        if line.dashed {
            let (dash, gap) = (7 * scale, 5 * scale);
            chart.draw_series(DashedLineSeries::new(path, dash, gap, style))?;
        } else {
            chart.draw_series(LineSeries::new(path.clone(), style))?;
            let dot = |at| Circle::new(at, 3 * scale, color.filled());
            chart.draw_series(path.into_iter().map(dot))?;
        }
    }
    legend(plot, area, chart.plotting_area().get_pixel_range(), scale)
}

/// Names of lines at the right of the plot, the one that ends highest first.
fn legend<B: DrawingBackend>(
    plot: &Lines,
    area: &Area<B>,
    (across, down): (std::ops::Range<i32>, std::ops::Range<i32>),
    scale: u32,
) -> Outcome
where
    B::ErrorType: 'static,
{
    let mut lines: Vec<_> = plot.lines.iter().enumerate().collect();
    let end = |line: &Line| line.points.last().map_or(0.0, |point| point.1);
    lines.sort_by(|(_, a), (_, b)| end(b).total_cmp(&end(a)));
    let points = |number: i32| number * scale as i32;
    let (start, mut y) = (across.end + points(12), down.start + points(10));
    for (i, line) in lines {
        let style = line_color(i, line).stroke_width(2 * scale);
        let segments: &[(i32, i32)] = if line.dashed {
            &[(0, 7), (12, 19)]
        } else {
            &[(0, 19)]
        };
        for (from, to) in segments {
            let ends = vec![(start + points(*from), y), (start + points(*to), y)];
            area.draw(&PathElement::new(ends, style))?;
        }
        let name = text(12, scale).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(line.name.clone(), (start + points(25), y), name))?;
        y += points(20);
    }
    Ok(())
}

fn line_color(number: usize, line: &Line) -> RGBColor {
    if line.dashed {
        GREY
    } else {
        COLORS[number % COLORS.len()]
    }
}

/// Names of both axes.
fn axis_names<B: DrawingBackend, CT: CoordTranslate>(
    area: &Area<B>,
    chart: &ChartContext<B, CT>,
    x: &str,
    y: &str,
    scale: u32,
) -> Outcome
where
    B::ErrorType: 'static,
{
    let (across, down) = chart.plotting_area().get_pixel_range();
    let middle = |range: &std::ops::Range<i32>| i32::midpoint(range.start, range.end);
    let below = text(13, scale).pos(Pos::new(HPos::Center, VPos::Bottom));
    let (_, height) = area.dim_in_pixel();
    let foot = height as i32 - 8 * scale as i32;
    area.draw(&Text::new(x.to_owned(), (middle(&across), foot), below))?;
    let beside = text(13, scale)
        .transform(FontTransform::Rotate270)
        .pos(Pos::new(HPos::Center, VPos::Top));
    area.draw(&Text::new(
        y.to_owned(),
        (8 * scale as i32, middle(&down)),
        beside,
    ))?;
    Ok(())
}

fn draw_heat<B: DrawingBackend>(plot: &Heat, area: &Area<B>, scale: u32) -> Outcome
where
    B::ErrorType: 'static,
{
    let (columns, rows) = (plot.columns.len(), plot.rows.len());
    let numbers = || plot.cells.iter().map(|(_, _, number)| *number);
    let (low, high) = (
        numbers().fold(f64::MAX, f64::min),
        numbers().fold(f64::MIN, f64::max),
    );
    let mut builder = ChartBuilder::on(area);
    builder
        .margin(14 * scale)
        .margin_right(24 * scale)
        .caption(&plot.title, text(16, scale))
        .x_label_area_size(42 * scale)
        .y_label_area_size(62 * scale);
    let chart = builder.build_cartesian_2d(0.0..columns as f64, 0.0..rows as f64)?;
    let plotting = chart.plotting_area();
    for (column, row, value) in &plot.cells {
        let (x, y) = (*column as f64, *row as f64);
        // By logarithm: what is ten times slower must not hide what is twice as slow.
        let part = ((value / low).ln() / (high / low).ln().max(1e-9)).clamp(0.0, 1.0);
        let color = heat_color(part);
        plotting.draw(&Rectangle::new(
            [(x, y), (x + 1.0, y + 1.0)],
            color.filled(),
        ))?;
        plotting.draw(&Rectangle::new(
            [(x, y), (x + 1.0, y + 1.0)],
            WHITE.stroke_width(2 * scale),
        ))?;
        let at = plotting.map_coordinate(&(x + 0.5, y + 0.5));
        let ink = if part < 0.45 { WHITE } else { INK };
        let style = (FAMILY, 13 * scale).into_font().color(&ink);
        let style = style.pos(Pos::new(HPos::Center, VPos::Center));
        area.draw(&Text::new(crate::table::short(*value), at, style))?;
    }
    let (across, down) = plotting.get_pixel_range();
    for (column, name) in plot.columns.iter().enumerate() {
        let (at, _) = plotting.map_coordinate(&(column as f64 + 0.5, 0.0));
        let style = text(12, scale).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new(
            name.to_string(),
            (at, down.end + 6 * scale as i32),
            style,
        ))?;
    }
    for (row, name) in plot.rows.iter().enumerate() {
        let (_, at) = plotting.map_coordinate(&(0.0, row as f64 + 0.5));
        let style = text(12, scale).pos(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(
            name.to_string(),
            (across.start - 7 * scale as i32, at),
            style,
        ))?;
    }
    axis_names(area, &chart, &plot.x, &plot.y, scale)
}

/// From dark (0) to light (1): viridis.
fn heat_color(part: f64) -> RGBColor {
    const STOPS: [(f64, f64, f64); 6] = [
        (68.0, 1.0, 84.0),
        (65.0, 68.0, 135.0),
        (42.0, 120.0, 142.0),
        (34.0, 168.0, 132.0),
        (122.0, 209.0, 81.0),
        (253.0, 231.0, 37.0),
    ];
    let place = part * (STOPS.len() - 1) as f64;
    let below = (place as usize).min(STOPS.len() - 2);
    let share = place - below as f64;
    let (a, b) = (STOPS[below], STOPS[below + 1]);
    let mix = |a: f64, b: f64| (a + (b - a) * share) as u8;
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// 1, 2 and 5 times powers of ten, as many as there is room for.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let steps: &[f64] = match decades {
        wide if wide > 5.0 => &[1.0],
        wide if wide > 2.5 => &[1.0, 3.0],
        wide if wide > 1.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
    };
    let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let all = (from..=to).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    all.filter(|y| (low * 0.88..=high * 1.14).contains(y))
        .collect()
}

/// Some even numbers from 0 to `high`.
fn even_ticks(high: f64) -> Vec<f64> {
    let rough = (high / 6.0).max(1e-12);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = step
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    (0..8)
        .map(|i| f64::from(i) * step)
        .take_while(|y| *y <= high * 1.08)
        .collect()
}

/// Without digits that say nothing.
fn number(y: f64) -> String {
    if y != 0.0 && !(1e-4..1e7).contains(&y) {
        return format!("{y:e}");
    }
    let text = format!("{y:.5}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Two to some power.
pub fn power(exponent: u32) -> String {
    format!("2{}", superscript(exponent))
}

fn superscript(number: u32) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let digits = number.to_string();
    let digits = digits
        .bytes()
        .map(|digit| DIGITS[usize::from(digit - b'0')]);
    digits.collect()
}
