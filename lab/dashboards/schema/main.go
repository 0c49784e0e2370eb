// Says what of a Grafana dashboard its schema does not know, by Grafana's own types. Usage: dashboard-schema FILE...
//
// It prints a line per fault, with the file's name, and ends with 1 if there is any.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// kinds has the panels of our dashboards: all that Grafana has would take a minute more to build.
var kinds = []variants.PanelcfgConfig{
	bargauge.VariantConfig(), stat.VariantConfig(), statetimeline.VariantConfig(), table.VariantConfig(), timeseries.VariantConfig(),
}

// faults reads a dashboard with no unknown field, and holds it against the schema's bounds.
func faults(text []byte) error {
	var parsed dashboard.Dashboard
	var errs cog.BuildErrors
	// An empty list of errors comes as an error that is not nil.
	if err := parsed.UnmarshalJSONStrict(text); err != nil && !(errors.As(err, &errs) && len(errs) == 0) {
		return err
	}
	return parsed.Validate()
}

func main() {
	runtime := cog.NewRuntime()
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	for _, kind := range kinds {
		runtime.RegisterPanelcfgVariant(kind)
	}
	var found int
	for _, name := range os.Args[1:] {
		text, err := os.ReadFile(name)
		if err == nil {
			err = faults(text)
		}
		if err != nil {
			found++
			for _, line := range strings.Split(err.Error(), "\n") {
				fmt.Printf("%s: %s\n", name, line)
			}
		}
	}
	if found > 0 {
		os.Exit(1)
	}
}
