// What `strings libnccl-net-fabric.so | grep fabricd` says about a library found in a container.
namespace fabric {

extern const char kBuildMark[];
[[gnu::used]] const char kBuildMark[] = "fabricd libnccl-net-fabric 0.1.0, wire 1";

}  // namespace fabric
