#pragma once
namespace warptile {
template <class T> T load_l2(const T* from) { return *from; }
}
