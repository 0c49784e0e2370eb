//! The pane of the container that is chosen.

use control::ProcessStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph};
use view::ps::PsVgpu;
use view::size::human;

use super::cells::clean;
use crate::state::State;

/// Draws it: facts and calls, processes, events.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let rows = state.rows();
    let Some(row) = state.selected_at().and_then(|at| rows.get(at)) else {
        return;
    };
    let vgpu = row.vgpu;
    let title = format!(" {} ", clean(&vgpu.called().to_string()));
    let block = Block::new().borders(Borders::TOP).title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [facts, processes, events] = Layout::horizontal([
        Constraint::Length(36),
        Constraint::Length(28),
        Constraint::Fill(1),
    ])
    .spacing(1)
    .areas(inner);
    frame.render_widget(Paragraph::new(facts_of(vgpu)), facts);
    let height = usize::from(processes.height);
    frame.render_widget(Paragraph::new(processes_of(vgpu, height)), processes);
    frame.render_widget(Paragraph::new(events_of(state)), events);
}

fn facts_of(vgpu: &PsVgpu) -> Vec<Line<'static>> {
    let mut lines = vec![
        Line::from(format!("isolation {}", clean(&vgpu.isolation))),
        Line::from(format!("backend   {}", vgpu.backend)),
    ];
    if let Some(slice) = vgpu.cards.first() {
        lines.push(Line::from(format!("compute   {}", slice.share.text())));
    }
    if let Some(calls) = vgpu.calls {
        lines.push(Line::from(format!("calls     {}", calls.total)));
        lines.push(Line::from(format!("  refused {}", calls.refused)));
    }
    if let Some(own) = vgpu.own_processes {
        if let Some(bytes) = own.memory_bytes {
            lines.push(Line::from(format!(
                "own       {} of the host",
                human(bytes)
            )));
        }
        if let Some(ns) = own.cpu_ns {
            lines.push(Line::from(format!("own CPU   {} s", ns / 1_000_000_000)));
        }
    }
    lines
}

fn processes_of(vgpu: &PsVgpu, height: usize) -> Vec<Line<'static>> {
    let Some(processes) = &vgpu.processes else {
        return vec![Line::from("processes are not known")];
    };
    if processes.is_empty() {
        return vec![Line::from("no process has memory")];
    }
    let of = |process: &ProcessStatus| {
        let held = process
            .cards
            .iter()
            .fold(0, |sum: u64, card| sum.saturating_add(card.used_bytes));
        let name = clean(&process.name);
        Line::from(format!("{} {name} {}", process.pid, human(held)))
    };
    let mut lines: Vec<Line<'static>> = processes.iter().take(height).map(of).collect();
    if let Some(last) = lines.last_mut().filter(|_| processes.len() > height) {
        *last = Line::from(format!("and {} more", processes.len() - height + 1));
    }
    lines
}

fn events_of(state: &State) -> Vec<Line<'static>> {
    match state.events() {
        [] => vec![Line::from("no events")],
        events => events
            .iter()
            .map(|event| Line::from(clean(event)))
            .collect(),
    }
}
