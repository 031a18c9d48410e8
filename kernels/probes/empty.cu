// Does nothing: measures the time of a launch alone, in a graph of launches that may overlap.
#include "async.cuh"

extern "C" __global__ void empty() {
    wait_for_last_launch();
    let_next_launch_start();
}
