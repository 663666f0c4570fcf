//! All reports of a run as one page: what a referee reads first, and from where each page is reached.

use super::chart::draw;
use super::drawing::escaped;
use super::html::{claims, command_and_conditions, head};
use super::text::{of_class, tally};
use super::theme::Theme;
use super::{Class, Report, ReportError};
use std::fmt::Write;

/// What all reports of a run have in common.
#[derive(Clone, Debug)]
pub struct Run {
    /// The exact line that repeats it.
    pub command: String,
    /// Names and values, in the order to show.
    pub conditions: Vec<(String, String)>,
}

/// How a claim came to its verdict, said once for all of them.
const GUIDE: [&str; 6] = [
    "Each claim is a figure that somebody stated, with its place in the source, and the same figure measured \
     here, by Weir's own code on emulated flash in virtual time. The verdict follows from the two and the \
     tolerance; nobody writes it.",
    "reproduced: within the tolerance. exceeded: better by more than the tolerance. missed: neither, with the \
     reason as far as it is known. contradicts itself: the source's own figures cannot all be true.",
    "fits and misfit tell whether the model of another system is as its source says. Where it is not, nothing is \
     ranked against it.",
    "met and missed, among goals of our own: what no source says, but we want to hold.",
    "95 % is the interval in which the mean of the seeds lies (Student's). A verdict that not all of it bears has a \
     question mark: other seeds may bear another one. Error bars are the least and the most of the seeds.",
    "In figures the source's points are hollow, Weir's series are cool colours, what it is compared with are warm \
     ones, and dotted lines are bounds by arithmetic.",
];

/// All claims and all figures of `reports` as one page; each is named with the page that has the rest.
pub fn html_of_all(reports: &[Report], run: &Run) -> Result<String, ReportError> {
    reports.iter().try_for_each(Report::check)?;
    let mut out = head("Every claim and every figure");
    out.push_str("<body>\n<main>\n<h1>Every claim and every figure</h1>\n");
    command_and_conditions(&run.command, &run.conditions, &mut out);
    contents(reports, &mut out);
    out.push_str("<h2>How to read it</h2>\n<ul class=\"notes\">\n");
    for line in GUIDE {
        let _ = writeln!(out, "<li>{line}</li>");
    }
    out.push_str("</ul>\n");
    for class in Class::ALL {
        let groups = reports.iter().map(|report| (Some(report), of_class(&report.claims, class)));
        claims(class, &groups.collect::<Vec<_>>(), &mut out);
    }
    for report in reports.iter().filter(|report| !report.figures.is_empty()) {
        let (name, title) = (escaped(&report.name), escaped(&report.title));
        let _ = writeln!(out, "<h2 id=\"{name}\"><a href=\"{name}.html\">{title}</a></h2>");
        let _ = writeln!(out, "<div class=\"command\">{}</div>", escaped(&report.command));
        for figure in &report.figures {
            let _ = write!(out, "<figure>\n{}</figure>\n", draw(figure, Theme::Page));
        }
    }
    out.push_str("</main>\n</body>\n</html>\n");
    Ok(out)
}

/// The experiments, with where they are from and how their claims ended.
fn contents(reports: &[Report], out: &mut String) {
    out.push_str(
        "<h2>Experiments</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>experiment</th>",
    );
    for class in Class::ALL {
        let _ = write!(out, "<th>{}</th>", class.title());
    }
    out.push_str("<th>figures</th></tr></thead>\n<tbody>\n");
    for report in reports {
        let (name, title) = (escaped(&report.name), escaped(&report.title));
        let source = escaped(&report.source);
        let _ = write!(
            out,
            "<tr><td><a href=\"{name}.html\">{title}</a><span class=\"of\">{source}</span></td>"
        );
        for class in Class::ALL {
            let _ = write!(out, "<td>{}</td>", tally(&of_class(&report.claims, class)));
        }
        let figures = match report.figures.len() {
            0 => String::new(),
            count => format!("<a href=\"#{name}\">{count}</a>"),
        };
        let _ = writeln!(out, "<td>{figures}</td></tr>");
    }
    out.push_str("</tbody></table></div>\n");
}
