//! Findings as pictures: SVG, the same bytes for the same numbers.

use std::path::Path;

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::drawing::IntoDrawingArea;
use plotters::element::PathElement;
use plotters::series::LineSeries;
use plotters::style::{Color, IntoFont, RGBColor, WHITE};

use crate::report::Plot;

/// Width and height, pixels.
const SIZE: (u32, u32) = (860, 420);

/// Told apart by people who see colours differently, too (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(160, 120, 60),
];

/// A picture could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// It has no points, or points that are no numbers.
    #[error("{file}: nothing to draw")]
    Empty {
        /// Which.
        file: String,
    },
    /// The crate that draws says no.
    #[error("{file}: {reason}")]
    Draw {
        /// Which.
        file: String,
        /// In its words.
        reason: String,
    },
    /// It was drawn and not written.
    #[error("writing {path}")]
    Write {
        /// Where.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// Draws it as `FOLDER/FILE.svg`.
///
/// # Errors
/// It has no points, or cannot be written.
pub fn write(plot: &Plot, folder: &Path) -> Result<(), PlotError> {
    let path = folder.join(format!("{}.svg", plot.file));
    std::fs::write(&path, svg(plot)?).map_err(|source| PlotError::Write {
        path: path.display().to_string(),
        source,
    })
}

/// The picture's text.
///
/// # Errors
/// It has no points.
pub fn svg(plot: &Plot) -> Result<String, PlotError> {
    let points: Vec<(f64, f64)> = plot
        .series
        .iter()
        .flat_map(|series| series.points.iter().copied())
        .collect();
    if points.is_empty() || points.iter().any(|(x, y)| !x.is_finite() || !y.is_finite()) {
        return Err(PlotError::Empty {
            file: plot.file.to_owned(),
        });
    }
    let mut text = String::new();
    draw(plot, &points, &mut text).map_err(|error| PlotError::Draw {
        file: plot.file.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(format!("{}\n", text.trim_end()))
}

fn draw(
    plot: &Plot,
    points: &[(f64, f64)],
    text: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let most = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).fold(f64::MIN, f64::max);
    let least = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).fold(f64::MAX, f64::min);
    let (left, right) = (least(|point| point.0), most(|point| point.0));
    let (bottom, top) = (least(|point| point.1).min(0.0), most(|point| point.1));
    let right = if right > left { right } else { left + 1.0 };
    let top = if top > bottom { top } else { bottom + 1.0 };

    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(&plot.title, ("sans-serif", 16).into_font())
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(left..right, bottom..top + (top - bottom) * 0.08)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(plot.x)
        .y_desc(plot.y)
        .label_style(("sans-serif", 12).into_font())
        .axis_desc_style(("sans-serif", 13).into_font())
        .draw()?;
    for (series, colour) in plot.series.iter().zip(COLOURS.iter().cycle()) {
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(
                series.points.iter().copied(),
                colour.stroke_width(2),
            ))?
            .label(&series.name)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(("sans-serif", 12).into_font())
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Series;

    fn example() -> Plot {
        Plot {
            file: "example",
            title: "shares & caps".to_owned(),
            x: "cap, %",
            y: "share, %",
            series: vec![
                Series::new("entitled", vec![(1.0, 1.0), (50.0, 50.0)]),
                Series::new("measured", vec![(1.0, 1.01), (50.0, 49.9)]),
            ],
        }
    }

    #[test]
    fn the_same_numbers_give_the_same_bytes() {
        let first = svg(&example()).unwrap();
        assert_eq!(first, svg(&example()).unwrap());
        assert!(first.starts_with("<svg") && first.ends_with("</svg>\n"));
        assert!(first.contains("measured") && first.contains("shares &amp; caps"));
    }

    #[test]
    fn a_picture_of_nothing_is_refused() {
        let mut plot = example();
        plot.series.clear();
        assert!(matches!(svg(&plot), Err(PlotError::Empty { .. })));
        plot = example();
        plot.series[0].points[0].1 = f64::NAN;
        assert!(matches!(svg(&plot), Err(PlotError::Empty { .. })));
    }
}
