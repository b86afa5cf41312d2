#pragma once
namespace warptile { inline void cp_async_4(void*s,const void*g,bool v){ if(v) memcpy(s,g,4); else memset(s,0,4); } }
