// A Go program at the driver: its runtime preempts goroutines by signals, profiles itself by signals, and collects garbage
// meanwhile. Every call must be executed once.
//
// client QUOTA OUT: allocates from several goroutines, with handles that the driver chooses, under a storm of the runtime's own
// preemption signal; writes OUT/report.json with what it holds, and waits for OUT/go.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	alloc    = 0xc030462b
	register = 0xc00446c9
	piece    = 64 << 10
	storm    = 1500 * time.Millisecond
	longest  = 15 * time.Second
	enough   = 64
)

var repeats atomic.Int64

// call makes an ioctl and makes it again, with the same bytes, whenever a signal has ended it.
func call(file uintptr, cmd uintptr, argument []byte) syscall.Errno {
	before := append([]byte(nil), argument...)
	for {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file, cmd, uintptr(unsafe.Pointer(&argument[0])))
		if errno != syscall.EINTR {
			return errno
		}
		repeats.Add(1)
		copy(argument, before)
	}
}

// object makes an object; its handle is the driver's choice where none is wanted.
func object(file uintptr, client, parent, handle, class uint32, params []byte) (uint32, error) {
	argument := make([]byte, 48)
	for index, word := range []uint32{client, parent, handle, class} {
		binary.LittleEndian.PutUint32(argument[4*index:], word)
	}
	if params != nil {
		// An address in bytes is none to the runtime: what lies on a goroutine's stack moves with it, and the driver would write
		// its answer over another frame. What is pinned lies on the heap.
		var pinner runtime.Pinner
		pinner.Pin(&params[0])
		defer pinner.Unpin()
		binary.LittleEndian.PutUint64(argument[16:], uint64(uintptr(unsafe.Pointer(&params[0]))))
		binary.LittleEndian.PutUint32(argument[32:], uint32(len(params)))
	}
	errno := call(file, alloc, argument)
	if errno != 0 {
		return 0, errno
	}
	if status := binary.LittleEndian.Uint32(argument[40:]); status != 0 {
		return 0, fmt.Errorf("status %#x", status)
	}
	return binary.LittleEndian.Uint32(argument[8:]), nil
}

func seat() (file uintptr, client, device uint32, err error) {
	control, err := syscall.Open("/dev/nvidiactl", syscall.O_RDWR, 0)
	if err != nil {
		return 0, 0, 0, err
	}
	for minor := 0; minor < 32; minor++ {
		node, err := syscall.Open(fmt.Sprintf("/dev/nvidia%d", minor), syscall.O_RDWR, 0)
		if err != nil {
			continue
		}
		number := make([]byte, 4)
		binary.LittleEndian.PutUint32(number, uint32(control))
		if errno := call(uintptr(node), register, number); errno != 0 {
			return 0, 0, 0, errno
		}
		break
	}
	file = uintptr(control)
	if client, err = object(file, 0, 0, 0, 0x41, nil); err != nil {
		return 0, 0, 0, fmt.Errorf("a root client: %w", err)
	}
	for instance := uint32(0); instance < 32; instance++ {
		params := make([]byte, 56)
		binary.LittleEndian.PutUint32(params, instance)
		binary.LittleEndian.PutUint32(params[4:], client)
		binary.LittleEndian.PutUint32(params[48:], 2)
		if device, err = object(file, client, client, 0x0a000001, 0x80, params); err == nil {
			return file, client, device, nil
		}
	}
	return 0, 0, 0, fmt.Errorf("no device: %w", err)
}

// preempt sends the runtime's own signal to all threads of this process, wherever they are.
func preempt(stop *atomic.Bool, sent *atomic.Int64) {
	for !stop.Load() {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, thread := range threads {
			tid, _ := strconv.Atoi(thread.Name())
			_, _, errno := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(tid), uintptr(syscall.SIGURG))
			if errno == 0 {
				sent.Add(1)
			}
		}
		time.Sleep(150 * time.Microsecond)
	}
}

func main() {
	quota, err := strconv.ParseInt(os.Args[1], 10, 64)
	if err != nil {
		panic(err)
	}
	out := os.Args[2]
	runtime.SetCPUProfileRate(1000)
	_ = pprof.StartCPUProfile(io.Discard)
	file, client, device, err := seat()
	if err != nil {
		panic(err)
	}
	var stop atomic.Bool
	var sent, done, failed, spun atomic.Int64
	var first atomic.Value
	go preempt(&stop, &sent)
	for range [2]int{} {
		go func() {
			// Without a call in it, such a loop gives its thread up only to the signal.
			for !stop.Load() {
				spun.Add(1)
			}
		}()
	}
	go func() {
		for !stop.Load() {
			runtime.GC()
			time.Sleep(5 * time.Millisecond)
		}
	}()
	began := time.Now()
	// A machine that is slow has more time, for so many calls as say something.
	goesOn := func() bool {
		took := time.Since(began)
		return took < storm || (done.Load() < enough && took < longest)
	}
	var workers sync.WaitGroup
	for range [4]int{} {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for goesOn() && done.Load() < quota/piece-64 {
				params := make([]byte, 128)
				binary.LittleEndian.PutUint32(params[24:], 3<<27)
				binary.LittleEndian.PutUint64(params[64:], piece)
				if _, err := object(file, client, device, 0, 0x40, params); err != nil {
					failed.Add(1)
					first.CompareAndSwap(nil, err.Error())
				} else {
					done.Add(1)
				}
			}
		}()
	}
	workers.Wait()
	stop.Store(true)
	pprof.StopCPUProfile()
	report := fmt.Sprintf(`{"tally":{"held_bytes":%d,"done":%d},"failed":%d,"first":%q,"sent":%d,"repeats":%d}`,
		done.Load()*piece, done.Load(), failed.Load(), fmt.Sprint(first.Load()), sent.Load(), repeats.Load())
	if err := os.WriteFile(out+"/report.new", []byte(report), 0o644); err != nil {
		panic(err)
	}
	if err := os.Rename(out+"/report.new", out+"/report.json"); err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(out + "/go"); err == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
