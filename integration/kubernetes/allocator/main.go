// Allocates claims as kube-scheduler does, by its own allocator and without a server. A question is a line of JSON on standard
// input, its answer one on standard output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// question: what a cluster has, what is given already, and the claims of one pod that are to be allocated on one node.
type question struct {
	Slices    []*resource.ResourceSlice `json:"slices"`
	Classes   []*resource.DeviceClass   `json:"classes"`
	Allocated []*resource.ResourceClaim `json:"allocated"`
	Claims    []*resource.ResourceClaim `json:"claims"`
	Node      string                    `json:"node"`
}

// answer: an allocation for each claim, none where they do not fit, or the allocator's error.
type answer struct {
	Allocations []resource.AllocationResult `json:"allocations"`
	Error       string                      `json:"error,omitempty"`
}

type classes []*resource.DeviceClass

func (all classes) List() ([]*resource.DeviceClass, error) { return all, nil }

func (all classes) Get(name string) (*resource.DeviceClass, error) {
	for _, class := range all {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no DeviceClass %s", name)
}

// The gates that are on by default in this release.
var features = structured.Features{
	AdminAccess:          true,
	ConsumableCapacity:   true,
	DeviceTaints:         true,
	PartitionableDevices: true,
	PrioritizedList:      true,
}

var expressions = cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})

// taken is what claims have already, as the scheduler gathers it: whole devices, and parts with their amounts.
func taken(claims []*resource.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case result.ShareID == nil:
				state.AllocatedDevices.Insert(device)
			default:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
			}
		}
	}
	return state
}

func allocate(ctx context.Context, question question) answer {
	allocator, err := structured.NewAllocator(ctx, features, taken(question.Allocated), classes(question.Classes), question.Slices, expressions)
	if err != nil {
		return answer{Error: err.Error()}
	}
	node := &core.Node{ObjectMeta: meta.ObjectMeta{Name: question.Node}}
	allocations, err := allocator.Allocate(ctx, node, question.Claims)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Allocations: allocations}
}

func run() error {
	input := bufio.NewReader(os.Stdin)
	questions := json.NewDecoder(input)
	answers := json.NewEncoder(os.Stdout)
	for questions.More() {
		var next question
		if err := questions.Decode(&next); err != nil {
			return err
		}
		if err := answers.Encode(allocate(context.Background(), next)); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
