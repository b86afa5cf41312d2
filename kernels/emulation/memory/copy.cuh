#pragma once
#include "base/element.cuh"
namespace warptile {
inline void cp_async_16(void*s,const void*g,bool v){ if(v) memcpy(s,g,16); else memset(s,0,16); }
inline void cp_async_commit(){} template<int N> void cp_async_wait(){}
}
