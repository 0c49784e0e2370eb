// Draws a dashboard of ours with Grafana's own components, from what a Prometheus answered (`lab/dashboards/tests/live.rs`).
// Grafana itself is not needed. Of its panels, the component library lacks the state timeline: coloured blocks stand for it.
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  createTheme, dateTime, FieldColorModeId, FieldType, formattedValueToString, getDisplayProcessor, toDataFrame,
  type DataFrame, type Field, type FieldConfig, type TimeRange,
} from '@grafana/data';
import { LegendDisplayMode, VisibilityMode } from '@grafana/schema';
import {
  BarGauge, BigValue, BigValueColorMode, BigValueGraphMode, BigValueTextMode, GlobalStyles, PanelChrome, Table,
  ThemeContext, TimeSeries,
} from '@grafana/ui';

type Series = { metric: Record<string, string>; value?: [number, string]; values?: Array<[number, string]> };
type Answers = { from: number; to: number; panels: Record<string, Series[][]> };
declare global {
  interface Window { DASHBOARD: any; ANSWERS: Answers }
}

const WIDTH = 1600;
const GRID_HEIGHT = 38;
const GAP = 8;
const theme = createTheme({ colors: { mode: 'light' } });
const { DASHBOARD: dashboard, ANSWERS: answers } = window;
const range: TimeRange = {
  from: dateTime(answers.from * 1000),
  to: dateTime(answers.to * 1000),
  raw: { from: dateTime(answers.from * 1000), to: dateTime(answers.to * 1000) },
};

// `{{label}}` as the data source fills it in.
function legend(format: string, metric: Record<string, string>): string {
  return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
}

const CUSTOM = {
  drawStyle: 'line', lineInterpolation: 'linear', axisPlacement: 'auto', axisColorMode: 'text', axisBorderShow: false,
  axisLabel: '', barAlignment: 0, fillOpacity: 0, gradientMode: 'none', hideFrom: { legend: false, tooltip: false, viz: false },
  insertNulls: false, lineWidth: 1, pointSize: 5, scaleDistribution: { type: 'linear' }, showPoints: VisibilityMode.Never,
  spanNulls: false, stacking: { group: 'A', mode: 'none' }, thresholdsStyle: { mode: 'off' },
};

// What Grafana makes of a panel's defaults and overrides.
function finished(field: Field, panel: any, index: number): Field {
  const config: FieldConfig = {
    color: { mode: panel.type === 'timeseries' ? FieldColorModeId.PaletteClassic : FieldColorModeId.Thresholds },
    ...panel.fieldConfig.defaults, ...field.config,
    custom: { ...CUSTOM, ...panel.fieldConfig.defaults.custom },
  };
  for (const rule of panel.fieldConfig.overrides) {
    if (rule.matcher.options === field.name) {
      for (const { id, value } of rule.properties) { (config as any)[id] = value; }
    }
  }
  const whole = { ...field, config, state: { ...field.state, seriesIndex: index } };
  whole.display = getDisplayProcessor({ field: whole, theme });
  return whole;
}

const number = (text: string) => (text === 'NaN' ? null : Number(text));

function frames(panel: any): DataFrame[] {
  let index = 0;
  return panel.targets.flatMap((target: any, at: number) =>
    (answers.panels[panel.id]?.[at] ?? []).map((series) => {
      const samples = series.values ?? (series.value ? [series.value] : []);
      const frame = toDataFrame({
        refId: target.refId,
        fields: [
          { name: 'Time', type: FieldType.time, values: samples.map(([at]) => at * 1000) },
          {
            name: 'Value', type: FieldType.number, values: samples.map(([, value]) => number(value)), labels: series.metric,
            config: { displayNameFromDS: legend(target.legendFormat, series.metric) || panel.title },
          },
        ],
      });
      frame.fields[1] = finished(frame.fields[1]!, panel, index++);
      frame.fields[0]!.display = getDisplayProcessor({ field: frame.fields[0]!, theme });
      return frame;
    })
  );
}

// `merge` and `organize`: a line for each set of labels, a column for each query.
function table(panel: any): DataFrame {
  const hidden = Object.keys(panel.transformations.find((one: any) => one.id === 'organize')?.options.excludeByName ?? {});
  const lines = new Map<string, { labels: Record<string, string>; values: Record<string, number | null> }>();
  const columns = new Set<string>();
  panel.targets.forEach((target: any, at: number) => {
    for (const { metric, value } of answers.panels[panel.id]?.[at] ?? []) {
      const labels = Object.fromEntries(Object.entries(metric).filter(([label]) => !hidden.includes(label)));
      Object.keys(labels).forEach((label) => columns.add(label));
      const key = JSON.stringify(Object.entries(labels).sort());
      const line = lines.get(key) ?? { labels, values: {} };
      line.values[`Value #${target.refId}`] = value ? number(value[1]) : null;
      lines.set(key, line);
    }
  });
  const all = [...lines.values()];
  const frame = toDataFrame({
    fields: [
      ...[...columns].map((name) => ({ name, type: FieldType.string, values: all.map(({ labels }) => labels[name] ?? '') })),
      ...panel.targets.map(({ refId }: any) => ({
        name: `Value #${refId}`, type: FieldType.number, values: all.map(({ values }) => values[`Value #${refId}`] ?? null),
      })),
    ],
  });
  frame.fields = frame.fields.map((field, index) => finished(field, panel, index));
  return frame;
}

function last(frame: DataFrame) {
  const field = frame.fields[1]!;
  const value = field.display!(field.values.at(-1));
  return { ...value, title: field.config.displayNameFromDS };
}

function States({ panel, height }: { panel: any; height: number }) {
  const all = frames(panel);
  const each = Math.min(28, (height - 20) / Math.max(1, all.length));
  return (
    <div>
      {all.map((frame, at) => {
        const field = frame.fields[1]!;
        return (
          <div key={at} style={{ display: 'flex', height: each, fontSize: 12, alignItems: 'center' }}>
            <span style={{ width: 220, overflow: 'hidden', whiteSpace: 'nowrap' }}>{field.config.displayNameFromDS}</span>
            {field.values.map((value: number, part: number) => (
              <span key={part} style={{ flex: 1, height: each - 4, background: theme.visualization.getColorByName(field.display!(value).color!) }} />
            ))}
            <span style={{ width: 90, paddingLeft: 8 }}>{formattedValueToString(field.display!(field.values.at(-1)))}</span>
          </div>
        );
      })}
    </div>
  );
}

function Body({ panel, width, height }: { panel: any; width: number; height: number }) {
  const all = panel.type === 'table' ? [] : frames(panel);
  switch (panel.type) {
    case 'stat':
      return all[0] ? (
        <BigValue theme={theme} width={width} height={height} value={{ ...last(all[0]), title: undefined }}
          colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.None} textMode={BigValueTextMode.Value} />
      ) : <>No data</>;
    case 'bargauge':
      return (
        <>
          {all.map((frame, at) => (
            <BarGauge key={at} theme={theme} width={width} height={Math.min(50, height / all.length)} orientation={'horizontal' as any}
              field={frame.fields[1]!.config} display={frame.fields[1]!.display!} value={{ ...last(frame) }}
              displayMode={'basic' as any} showUnfilled={true} itemSpacing={4} />
          ))}
        </>
      );
    case 'table':
      return <Table data={table(panel)} width={width} height={height} />;
    case 'state-timeline':
      return <States panel={panel} height={height} />;
    default:
      return all.length ? (
        <TimeSeries frames={all} timeRange={range} timeZone="utc" width={width} height={height}
          legend={{ ...panel.options.legend, displayMode: LegendDisplayMode.Table }} options={panel.options} />
      ) : <>No data</>;
  }
}

function Dashboard() {
  const column = WIDTH / 24;
  const rows = Math.max(...dashboard.panels.map(({ gridPos }: any) => gridPos.y + gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: 'relative', width: WIDTH, height: rows * GRID_HEIGHT, background: theme.colors.background.canvas }}>
        {dashboard.panels.map((panel: any) => {
          const { x, y, w, h } = panel.gridPos;
          const [width, height] = [w * column - GAP, h * GRID_HEIGHT - GAP];
          const place = { position: 'absolute', left: x * column + GAP / 2, top: y * GRID_HEIGHT + GAP / 2, width, height } as const;
          return panel.type === 'row' ? (
            <h4 key={panel.id} style={place}>{panel.title}</h4>
          ) : (
            <div key={panel.id} style={place}>
              <PanelChrome title={panel.title} width={width} height={height}>
                {(innerWidth, innerHeight) => <Body panel={panel} width={innerWidth} height={innerHeight} />}
              </PanelChrome>
            </div>
          );
        })}
      </div>
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById('dashboard')!).render(<Dashboard />);
